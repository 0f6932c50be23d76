/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The tunnel of direct server return: a client's packet is sent to the node of its pod unchanged,
 * in UDP and Geneve (RFC 8926) with one option, which names the pod. There it is unwrapped, if it
 * came from a node of the cluster. The same header, marked as a control packet and without an inner
 * packet, asks a node whether it takes part.
 */
#ifndef LB_TUNNEL_H
#define LB_TUNNEL_H

#include "addr.h"
#include "csum.h"
#include "filter.h"
#include "forward.h"
#include "frontend.h"
#include "maps.h"
#include "packet.h"
#include "verdict.h"

/* In 4-byte words: the option's data; the options. */
#define LB_GENEVE_DATA 5
#define LB_GENEVE_OPTIONS (LB_GENEVE_DATA + 1)
#define LB_GENEVE_CONTROL 0x80
#define LB_GENEVE_CRITICAL 0x40
/* An experimental class, and a critical option, so that nobody else accepts the packet. */
#define LB_GENEVE_CLASS 0xff6c
#define LB_GENEVE_POD 0x81

#define LB_TUNNEL_TTL 64
/* The first source port, and the bits of a hash added to it. */
#define LB_TUNNEL_FIRST_PORT 0xc000

static __always_inline __u32 lb_tunnel_len(int is_ipv4)
{
	return is_ipv4 ? sizeof(struct lb_tunnel_ipv4) : sizeof(struct lb_tunnel_ipv6);
}

/* The tunnel from which the current packet was unwrapped; NULL if there was none. */
static __always_inline struct lb_tunnel *lb_tunnel_opened(void)
{
	struct lb_tunnel *tunnel;
	int zero = 0;

	tunnel = lb_tunnels.lookup(&zero);
	return tunnel && tunnel->is_open ? tunnel : NULL;
}

/* The packet has been handled. */
static __always_inline void lb_tunnel_close(void)
{
	struct lb_tunnel *tunnel;
	int zero = 0;

	tunnel = lb_tunnels.lookup(&zero);
	if (tunnel)
		tunnel->is_open = 0;
}

/* Keeps the packets of a flow in order, and spreads flows over queues and links. */
static __always_inline __be16 lb_tunnel_source_port(const struct lb_packet *pkt)
{
	__u32 hash = pkt->tuple.saddr.word[3] ^ pkt->tuple.daddr.word[3];

	hash = (hash ^ (__u32)pkt->tuple.sport << 16 ^ pkt->tuple.dport) * 0x9e3779b1;
	return bpf_htons(LB_TUNNEL_FIRST_PORT | hash >> 18);
}

static __always_inline void lb_tunnel_fill(struct udphdr *udp, struct lb_geneve *geneve,
					   const struct lb_packet *pkt, __be16 port)
{
	udp->source = lb_tunnel_source_port(pkt);
	udp->dest = port;
	udp->len = bpf_htons(sizeof(*udp) + sizeof(*geneve) + pkt->len);
	udp->check = 0;
	geneve->options = LB_GENEVE_OPTIONS;
	geneve->flags = LB_GENEVE_CRITICAL;
	geneve->protocol = bpf_htons(pkt->is_ipv4 ? ETH_P_IP : ETH_P_IPV6);
	geneve->vni = 0;
	geneve->class = bpf_htons(LB_GENEVE_CLASS);
	geneve->type = LB_GENEVE_POD;
	geneve->length = LB_GENEVE_DATA;
	geneve->pod = pkt->peer.daddr;
	geneve->port = pkt->peer.dport;
	geneve->answer = 0;
}

static __always_inline void lb_tunnel_fill_ipv4(struct lb_tunnel_ipv4 *head,
						const struct lb_packet *pkt,
						const struct lb_settings *settings)
{
	struct iphdr ip = {
		.version = 4,
		.ihl = 5,
		.tot_len = bpf_htons(sizeof(*head) + pkt->len),
		.frag_off = bpf_htons(1 << LB_IPV4_DF_BIT),
		.ttl = LB_TUNNEL_TTL,
		.protocol = IPPROTO_UDP,
		.saddr = settings->node4.word[3],
		.daddr = pkt->peer.saddr.word[3],
	};

	ip.check = lb_csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0));
	head->ip = ip;
	lb_tunnel_fill(&head->udp, &head->geneve, pkt, settings->dsr_port);
}

/* With a UDP checksum of zero: RFC 6935. */
static __always_inline void lb_tunnel_fill_ipv6(struct lb_tunnel_ipv6 *head,
						const struct lb_packet *pkt,
						const struct lb_settings *settings)
{
	struct ipv6hdr *ip = &head->ip;

	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 6;
	ip->payload_len = bpf_htons(sizeof(*head) - sizeof(*ip) + pkt->len);
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = LB_TUNNEL_TTL;
	__builtin_memcpy(&ip->saddr, &settings->node6, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, &pkt->peer.saddr, sizeof(ip->daddr));
	lb_tunnel_fill(&head->udp, &head->geneve, pkt, settings->dsr_port);
}

/* Puts a header of len bytes in front of the packet. GSO packets have room for it. */
static __always_inline int lb_tunnel_wrap(struct __sk_buff *skb, const struct lb_packet *pkt,
					  void *head, __u32 len, __u64 family)
{
	__u64 flags = family | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_FIXED_GSO |
		      BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct lb_geneve));

	if (bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	return bpf_skb_store_bytes(skb, pkt->l3, head, len, 0);
}

/* Sends the packet to the node pkt->peer.saddr, for pod pkt->peer.daddr, along the route in fib. */
static __always_inline int lb_tunnel_send(struct __sk_buff *skb, const struct lb_packet *pkt,
					  const struct bpf_fib_lookup *fib)
{
	struct lb_settings *settings;
	struct lb_tunnel *tunnel;
	int zero = 0;
	int error;

	settings = lb_settings.lookup(&zero);
	tunnel = lb_tunnels.lookup(&zero);
	if (!settings || !tunnel)
		return -LB_DROP_REWRITE;
	if (pkt->is_ipv4) {
		lb_tunnel_fill_ipv4(&tunnel->ipv4, pkt, settings);
		error = lb_tunnel_wrap(skb, pkt, &tunnel->ipv4, sizeof(tunnel->ipv4),
				       BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);
	} else {
		lb_tunnel_fill_ipv6(&tunnel->ipv6, pkt, settings);
		error = lb_tunnel_wrap(skb, pkt, &tunnel->ipv6, sizeof(tunnel->ipv6),
				       BPF_F_ADJ_ROOM_ENCAP_L3_IPV6);
	}
	return error ? -LB_DROP_REWRITE : lb_forward(skb, pkt, fib);
}

/* The route to a node for a tunneled packet. If that is too big, fib->tot_len is what fits. */
static __always_inline int lb_tunnel_route(struct bpf_fib_lookup *fib, void *ctx,
					   const struct lb_packet *pkt, const struct lb_addr *node)
{
	__u32 overhead = lb_tunnel_len(pkt->is_ipv4);
	struct lb_settings *settings;
	int zero = 0;
	int verdict;

	settings = lb_settings.lookup(&zero);
	if (!settings)
		return -LB_DROP_NO_ROUTE;
	lb_fib_fill(fib, pkt, pkt->is_ipv4 ? &settings->node4 : &settings->node6, node,
		    LB_LOOPBACK_IFINDEX);
	fib->l4_protocol = IPPROTO_UDP;
	verdict = lb_fib_ask(fib, ctx, pkt, lb_wire_len(pkt) + overhead);
	if (verdict == -LB_DROP_TOO_BIG)
		fib->tot_len -= overhead;
	return verdict;
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

/* Whether the ends are a node of the cluster and this node. LB_NEXT: it is for another receiver. */
static __always_inline int lb_tunnel_check_ends(struct lb_addr *from, const struct lb_addr *to)
{
	if (!(lb_addr_flags_of(to) & LB_ADDR_NODE))
		return LB_NEXT;
	return lb_peers.lookup(from) ? LB_REDIRECT : -LB_DROP_TUNNEL;
}

/* The inner packet has the family of the tunnel. */
static __always_inline int lb_tunnel_shrink(struct __sk_buff *skb, const struct lb_geneve *geneve,
					    __be16 protocol, __s32 len)
{
	if (geneve->flags & LB_GENEVE_CONTROL || geneve->protocol != protocol ||
	    bpf_skb_adjust_room(skb, -len, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return -LB_DROP_TUNNEL;
	return LB_PASS;
}

static __always_inline int lb_geneve_is_question(const struct lb_geneve *geneve)
{
	return geneve->flags & LB_GENEVE_CONTROL && geneve->port && !geneve->answer;
}

static __always_inline int lb_tunnel_unwrap_ipv4(struct __sk_buff *skb, struct lb_tunnel_ipv4 *head,
						 int l2)
{
	struct lb_addr from, to;
	int verdict;

	if (bpf_skb_load_bytes(skb, l2, head, sizeof(*head)) || !lb_geneve_is_ours(&head->geneve))
		return LB_NEXT;
	lb_addr_from_ipv4(&from, head->ip.saddr);
	lb_addr_from_ipv4(&to, head->ip.daddr);
	verdict = lb_tunnel_check_ends(&from, &to);
	if (verdict != LB_REDIRECT)
		return verdict;
	if (!lb_geneve_is_question(&head->geneve))
		return lb_tunnel_shrink(skb, &head->geneve, bpf_htons(ETH_P_IP), sizeof(*head));
	lb_geneve_answer(&head->udp, &head->geneve);
	head->ip.saddr = to.word[3];
	head->ip.daddr = from.word[3];
	return bpf_skb_store_bytes(skb, l2, head, sizeof(*head), 0) ? -LB_DROP_TUNNEL : LB_REDIRECT;
}

static __always_inline int lb_tunnel_unwrap_ipv6(struct __sk_buff *skb, struct lb_tunnel_ipv6 *head,
						 int l2)
{
	struct lb_addr from, to;
	int verdict;

	if (bpf_skb_load_bytes(skb, l2, head, sizeof(*head)) || !lb_geneve_is_ours(&head->geneve))
		return LB_NEXT;
	__builtin_memcpy(&from, &head->ip.saddr, sizeof(from));
	__builtin_memcpy(&to, &head->ip.daddr, sizeof(to));
	verdict = lb_tunnel_check_ends(&from, &to);
	if (verdict != LB_REDIRECT)
		return verdict;
	if (!lb_geneve_is_question(&head->geneve))
		return lb_tunnel_shrink(skb, &head->geneve, bpf_htons(ETH_P_IPV6), sizeof(*head));
	lb_geneve_answer(&head->udp, &head->geneve);
	__builtin_memcpy(&head->ip.saddr, &to, sizeof(to));
	__builtin_memcpy(&head->ip.daddr, &from, sizeof(from));
	return bpf_skb_store_bytes(skb, l2, head, sizeof(*head), 0) ? -LB_DROP_TUNNEL : LB_REDIRECT;
}

/* Whether a packet looks like a tunneled one. */
static __always_inline int lb_tunnel_is_arriving(const struct lb_glance *seen)
{
	return seen->is_plain && seen->proto == IPPROTO_UDP && lb_filter_is_dsr_port(seen->dport);
}

/* Whether a pod sends in a tunnel to a node: only nodes do. */
static __always_inline int lb_tunnel_is_forged(struct __sk_buff *skb, int l2,
					       const struct lb_glance *seen)
{
	struct lb_tunnel *tunnel;
	struct lb_geneve *geneve;
	struct lb_addr to;
	int zero = 0;

	tunnel = lb_tunnels.lookup(&zero);
	if (!tunnel || !lb_tunnel_is_arriving(seen))
		return 0;
	if (seen->is_ipv4) {
		if (bpf_skb_load_bytes(skb, l2, &tunnel->ipv4, sizeof(tunnel->ipv4)))
			return 0;
		lb_addr_from_ipv4(&to, tunnel->ipv4.ip.daddr);
		geneve = &tunnel->ipv4.geneve;
	} else {
		if (bpf_skb_load_bytes(skb, l2, &tunnel->ipv6, sizeof(tunnel->ipv6)))
			return 0;
		__builtin_memcpy(&to, &tunnel->ipv6.ip.daddr, sizeof(to));
		geneve = &tunnel->ipv6.geneve;
	}
	return lb_geneve_is_ours(geneve) &&
	       (lb_addr_flags_of(&to) & LB_ADDR_NODE || lb_peers.lookup(&to));
}

/*
 * LB_NEXT: it did not come from one of our tunnels, and is unchanged. LB_PASS: it has been
 * unwrapped; lb_tunnel_opened() returns the tunnel until it has been handled. LB_REDIRECT: it was a
 * question, and is now the answer.
 */
static __always_inline int lb_tunnel_receive(struct __sk_buff *skb, int l2,
					     const struct lb_glance *seen)
{
	struct lb_tunnel *tunnel;
	int zero = 0;
	int verdict;

	tunnel = lb_tunnels.lookup(&zero);
	if (!tunnel)
		return LB_NEXT;
	tunnel->is_open = 0;
	if (!lb_tunnel_is_arriving(seen))
		return LB_NEXT;
	verdict = skb->protocol == bpf_htons(ETH_P_IP) ?
			  lb_tunnel_unwrap_ipv4(skb, &tunnel->ipv4, l2) :
			  lb_tunnel_unwrap_ipv6(skb, &tunnel->ipv6, l2);
	if (verdict == LB_REDIRECT)
		return lb_return_to_sender(skb, l2, LB_HOOK_HOST_INGRESS);
	if (verdict == LB_PASS) {
		tunnel->is_open = 1;
		if (skb->protocol == bpf_htons(ETH_P_IP))
			tunnel->geneve = tunnel->ipv4.geneve;
		else
			tunnel->geneve = tunnel->ipv6.geneve;
	}
	return verdict;
}

#endif
