/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The end of a tunnel of direct server return: a packet is unwrapped if it comes from a node of the
 * cluster, with a key. What a pod sends in a tunnel to a node is dropped.
 */
#ifndef LB_TUNNEL_END_H
#define LB_TUNNEL_END_H

#include "addr.h"
#include "filter.h"
#include "forward.h"
#include "frontend.h"
#include "ip_header.h"
#include "maps.h"
#include "tunnel.h"
#include "verdict.h"

static __always_inline int lb_geneve_has_key(const struct lb_geneve *geneve)
{
	struct lb_tunnel_keys *known = lb_tunnel_known_keys();
	__u64 key;

	__builtin_memcpy(&key, geneve->key, sizeof(key));
	return known && (key == known->sent || key == known->other);
}

static __always_inline int lb_geneve_is_ours(const struct lb_geneve *geneve)
{
	return geneve->options == LB_GENEVE_OPTIONS &&
	       geneve->class == bpf_htons(LB_GENEVE_CLASS) && geneve->type == LB_GENEVE_POD &&
	       geneve->length == LB_GENEVE_DATA;
}

/* Two words are swapped, as are addresses and ports: no checksum changes. */
static __always_inline void lb_geneve_answer(struct udphdr *udp, struct lb_geneve *geneve)
{
	__be16 port = udp->source;

	udp->source = udp->dest;
	udp->dest = port;
	geneve->answer = geneve->port;
	geneve->port = 0;
}

/*
 * LB_REDIRECT: it is from a node of the cluster, with a key, to this node. LB_NEXT: it is for
 * another receiver.
 */
static __always_inline int lb_tunnel_check(struct lb_addr *from, const struct lb_addr *to,
					   const struct lb_geneve *geneve)
{
	if (!(lb_addr_flags_of(to) & LB_ADDR_NODE))
		return LB_NEXT;
	if (!lb_nodes.lookup(from))
		return -LB_DROP_TUNNEL;
	return lb_geneve_has_key(geneve) ? LB_REDIRECT : -LB_DROP_TUNNEL_KEY;
}

static __always_inline int lb_geneve_is_question(const struct lb_geneve *geneve)
{
	return geneve->flags & LB_GENEVE_CONTROL && geneve->port && !geneve->answer;
}

/* Whether the packet has the headers of our tunnels; then all is filled. is_ipv4: a constant. */
static __always_inline int lb_tunnel_load(struct __sk_buff *skb, int l2, struct lb_tunnel *tunnel,
					  struct lb_addr *from, struct lb_addr *to, int is_ipv4)
{
	void *head = lb_ip_start(&tunnel->ip, is_ipv4);

	if (bpf_skb_load_bytes(skb, l2, head, lb_tunnel_len(is_ipv4)) ||
	    !lb_geneve_is_ours(&tunnel->geneve))
		return 0;
	lb_ip_read(head, from, to, is_ipv4);
	return 1;
}

/* The inner packet has the family of the tunnel. is_ipv4: a constant. */
static __always_inline int lb_tunnel_unwrap(struct __sk_buff *skb, struct lb_tunnel *tunnel, int l2,
					    int is_ipv4)
{
	__be16 protocol = bpf_htons(is_ipv4 ? ETH_P_IP : ETH_P_IPV6);
	void *head = lb_ip_start(&tunnel->ip, is_ipv4);
	struct lb_geneve *geneve = &tunnel->geneve;
	int len = lb_tunnel_len(is_ipv4);
	struct lb_addr from, to;
	int verdict;

	if (!lb_tunnel_load(skb, l2, tunnel, &from, &to, is_ipv4))
		return LB_NEXT;
	verdict = lb_tunnel_check(&from, &to, geneve);
	if (verdict != LB_REDIRECT)
		return verdict;
	if (lb_geneve_is_question(geneve)) {
		lb_geneve_answer(&tunnel->udp, geneve);
		lb_ip_write(head, &to, &from, is_ipv4);
		return bpf_skb_store_bytes(skb, l2, head, len, 0) ? -LB_DROP_TUNNEL : LB_REDIRECT;
	}
	if (geneve->flags & LB_GENEVE_CONTROL || geneve->protocol != protocol ||
	    bpf_skb_adjust_room(skb, -len, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return -LB_DROP_TUNNEL;
	return LB_PASS;
}

/* Whether a packet looks like a tunneled one. */
static __always_inline int lb_tunnel_is_arriving(const struct lb_summary *summary)
{
	return summary->is_plain && summary->proto == IPPROTO_UDP &&
	       lb_filter_is_dsr_port(summary->dport);
}

/* Whether a pod sends in a tunnel to a node: only nodes do. */
static __always_inline int lb_tunnel_is_forged(struct __sk_buff *skb, int l2,
					       const struct lb_summary *summary)
{
	struct lb_tunnel *tunnel = LB_SCRATCH(tunnel);
	struct lb_addr from, to;

	if (!tunnel || !lb_tunnel_is_arriving(summary) ||
	    !(summary->is_ipv4 ? lb_tunnel_load(skb, l2, tunnel, &from, &to, 1) :
				 lb_tunnel_load(skb, l2, tunnel, &from, &to, 0)))
		return 0;
	return lb_addr_flags_of(&to) & LB_ADDR_NODE || lb_nodes.lookup(&to);
}

/*
 * LB_NEXT: it did not come from one of our tunnels, and is unchanged. LB_PASS: it has been
 * unwrapped; lb_tunnel_opened() returns the tunnel until it has been handled. LB_REDIRECT: it was a
 * question, and is now the answer.
 */
static __always_inline int lb_tunnel_receive(struct __sk_buff *skb, int l2,
					     const struct lb_summary *summary)
{
	struct lb_tunnel *tunnel = LB_SCRATCH(tunnel);
	int verdict;

	if (!tunnel)
		return LB_NEXT;
	tunnel->is_open = 0;
	if (!lb_tunnel_is_arriving(summary))
		return LB_NEXT;
	verdict = skb->protocol == bpf_htons(ETH_P_IP) ? lb_tunnel_unwrap(skb, tunnel, l2, 1) :
							 lb_tunnel_unwrap(skb, tunnel, l2, 0);
	if (verdict == LB_REDIRECT)
		return lb_return_to_sender(skb, l2, LB_HOOK_HOST_INGRESS);
	if (verdict == LB_PASS)
		tunnel->is_open = lb_geneve_is_returned(&tunnel->geneve) ? LB_TUNNEL_RETURNED :
									   LB_TUNNEL_ARRIVED;
	return verdict;
}

#endif
