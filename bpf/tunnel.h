/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The tunnel of direct server return: a client's packet is sent to the node of its pod unchanged,
 * in UDP and Geneve (RFC 8926) with one option, which names the pod and has a key. The same header,
 * marked as a control packet and without an inner packet, asks a node whether it takes part. A node
 * that does not know the endpoint returns the packet the same way, and its sender masquerades it.
 */
#ifndef LB_TUNNEL_H
#define LB_TUNNEL_H

#include "addr.h"
#include "clock.h"
#include "csum.h"
#include "forward.h"
#include "ip_header.h"
#include "maps.h"
#include "packet.h"
#include "parse.h"
#include "verdict.h"

/* In 4-byte words: the option's data; the options. */
#define LB_GENEVE_DATA 7
#define LB_GENEVE_OPTIONS (LB_GENEVE_DATA + 1)
#define LB_GENEVE_CONTROL 0x80
#define LB_GENEVE_CRITICAL 0x40
/* An experimental class, and a critical option, so that nobody else accepts the packet. */
#define LB_GENEVE_CLASS 0xff6c
#define LB_GENEVE_POD 0x81

/* The first source port, and the bits of a hash added to it. */
#define LB_TUNNEL_FIRST_PORT 0xc000

static __always_inline __u32 lb_tunnel_len(int is_ipv4)
{
	return lb_ip_len(is_ipv4) + sizeof(struct udphdr) + sizeof(struct lb_geneve);
}

/* Whether the inner packet comes back from the node to which this one has sent it. */
static __always_inline int lb_geneve_is_returned(const struct lb_geneve *geneve)
{
	return geneve->answer != 0;
}

/* The tunnel from which the current packet was unwrapped; NULL if there was none. */
static __always_inline struct lb_tunnel *lb_tunnel_opened(void)
{
	struct lb_tunnel *tunnel = LB_SCRATCH(tunnel);

	return tunnel && tunnel->is_open ? tunnel : NULL;
}

/* The same; NULL also if the packet has come back, and is one from outside again. */
static __always_inline struct lb_tunnel *lb_tunnel_arrived(void)
{
	struct lb_tunnel *tunnel = LB_SCRATCH(tunnel);

	return tunnel && tunnel->is_open == LB_TUNNEL_ARRIVED ? tunnel : NULL;
}

/* Whether the packet has come back: it must not enter a tunnel again. */
static __always_inline void lb_tunnel_note(struct lb_packet *pkt)
{
	struct lb_tunnel *tunnel = LB_SCRATCH(tunnel);

	if (tunnel && tunnel->is_open == LB_TUNNEL_RETURNED)
		pkt->routing |= LB_IS_RETURNED;
}

/* The packet has been handled: the next one on this CPU may be at XDP, which opens no tunnel. */
static __always_inline void lb_tunnel_close(void)
{
	struct lb_tunnel *tunnel = LB_SCRATCH(tunnel);

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

static __always_inline struct lb_tunnel_keys *lb_tunnel_known_keys(void)
{
	int zero = 0;

	return lb_tunnel_keys.lookup(&zero);
}

/* The headers in front of the packet. The UDP checksum is zero: RFC 6935. is_ipv4: a constant. */
static __always_inline void lb_tunnel_fill(void *head, const struct lb_packet *pkt,
					   const struct lb_settings *settings, int is_ipv4)
{
	struct udphdr *udp = head + lb_ip_len(is_ipv4);
	struct lb_geneve *geneve = (void *)(udp + 1);
	__u32 len = sizeof(*udp) + sizeof(*geneve) + pkt->len;
	struct lb_tunnel_keys *known;
	struct iphdr *ipv4 = head;

	__builtin_memset(head, 0, lb_ip_len(is_ipv4));
	if (is_ipv4)
		ipv4->frag_off = bpf_htons(1 << LB_IPV4_DF_BIT);
	lb_ip_write(head, is_ipv4 ? &settings->node4 : &settings->node6, &pkt->tunneled.node,
		    is_ipv4);
	lb_ip_complete(head, IPPROTO_UDP, len, is_ipv4);
	udp->source = lb_tunnel_source_port(pkt);
	udp->dest = settings->dsr_port;
	udp->len = bpf_htons(len);
	udp->check = 0;
	geneve->options = LB_GENEVE_OPTIONS;
	geneve->flags = LB_GENEVE_CRITICAL;
	geneve->protocol = bpf_htons(is_ipv4 ? ETH_P_IP : ETH_P_IPV6);
	geneve->vni = 0;
	geneve->class = bpf_htons(LB_GENEVE_CLASS);
	geneve->type = LB_GENEVE_POD;
	geneve->length = LB_GENEVE_DATA;
	geneve->pod = pkt->tunneled.pod;
	geneve->port = pkt->tunneled.port;
	geneve->answer = bpf_htons(!!(pkt->routing & LB_IS_RETURNED));
	known = lb_tunnel_known_keys();
	if (known)
		__builtin_memcpy(geneve->key, &known->sent, sizeof(geneve->key));
}

/*
 * GSO packets have room for the headers. A returned packet may still be marked as tunneled, by a sender
 * on the same machine; then the helper wants no flags. is_ipv4: a constant.
 */
static __always_inline int lb_tunnel_wrap(struct __sk_buff *skb, const struct lb_packet *pkt,
					  struct lb_tunnel *tunnel,
					  const struct lb_settings *settings, int is_ipv4)
{
	__u64 family = is_ipv4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	__u64 flags = family | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_FIXED_GSO |
		      BPF_F_ADJ_ROOM_ENCAP_L2(sizeof(struct lb_geneve));
	void *head = lb_ip_start(&tunnel->ip, is_ipv4);
	__u32 len = lb_tunnel_len(is_ipv4);

	lb_tunnel_fill(head, pkt, settings, is_ipv4);
	if (bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_MAC, flags) &&
	    (!(pkt->routing & LB_IS_RETURNED) ||
	     bpf_skb_adjust_room(skb, len, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO)))
		return -1;
	return bpf_skb_store_bytes(skb, pkt->l3, head, len, 0);
}

/* Sends the packet to pkt->tunneled.node, for pkt->tunneled.pod, along the route in fib. */
static __always_inline int lb_tunnel_send(struct __sk_buff *skb, const struct lb_packet *pkt,
					  const struct bpf_fib_lookup *fib)
{
	struct lb_settings *settings = lb_settings_get();
	struct lb_tunnel *tunnel = LB_SCRATCH(tunnel);
	int error;

	if (!settings || !tunnel)
		return -LB_DROP_REWRITE;
	error = pkt->is_ipv4 ? lb_tunnel_wrap(skb, pkt, tunnel, settings, 1) :
			       lb_tunnel_wrap(skb, pkt, tunnel, settings, 0);
	return error ? -LB_DROP_REWRITE : lb_forward(skb, pkt, fib);
}

/* RFC 8201: ten minutes until a larger packet is tried again. */
#define LB_PATH_MTU_LIFE (600 * LB_SECOND)

/* What fits on the path to a node, with the tunnel's headers; 0 if nobody has told. */
static __always_inline __u32 lb_tunnel_mtu(const struct lb_addr *node)
{
	struct lb_addr key = *node;
	struct lb_path_mtu *told = lb_tunnel_mtus.lookup(&key);

	return told && (__s64)(lb_now() - told->told) < (__s64)LB_PATH_MTU_LIFE ? told->mtu : 0;
}

/* The route to a node for a tunneled packet. If that is too big, fib->tot_len is what fits. */
static __always_inline int lb_tunnel_route(struct bpf_fib_lookup *fib, void *ctx,
					   const struct lb_packet *pkt, const struct lb_addr *node)
{
	__u32 overhead = lb_tunnel_len(pkt->is_ipv4);
	__u32 wire_len = lb_wire_len(pkt) + overhead;
	__u32 limit = lb_tunnel_mtu(node);
	struct lb_settings *settings = lb_settings_get();
	int verdict;

	if (!settings)
		return -LB_DROP_NO_ROUTE;
	lb_fib_fill(fib, pkt, pkt->is_ipv4 ? &settings->node4 : &settings->node6, node,
		    LB_LOOPBACK_IFINDEX);
	fib->l4_protocol = IPPROTO_UDP;
	fib->sport = lb_tunnel_source_port(pkt);
	fib->dport = settings->dsr_port;
	verdict = lb_fib_ask(fib, ctx, pkt, wire_len);
	if (verdict && verdict != -LB_DROP_TOO_BIG)
		return verdict;
	if (verdict && (!limit || fib->tot_len < limit))
		limit = fib->tot_len;
	if (!limit || wire_len <= limit)
		return verdict;
	fib->tot_len = limit - overhead;
	return -LB_DROP_TOO_BIG;
}

/*
 * LB_TUNNEL, with the route in fib: the packet goes back to the node that has tunneled it here, which
 * may have heard of a Service or an endpoint before this node has.
 */
static __always_inline int lb_tunnel_return(struct bpf_fib_lookup *fib, void *ctx,
					    struct lb_packet *pkt)
{
	struct lb_tunnel *tunnel = lb_tunnel_opened();

	if (!tunnel)
		return -LB_DROP_TUNNEL;
	if (pkt->is_ipv4)
		lb_ip_read(lb_ip_start(&tunnel->ip, 1), &pkt->tunneled.node, &pkt->tunneled.pod, 1);
	else
		lb_ip_read(lb_ip_start(&tunnel->ip, 0), &pkt->tunneled.node, &pkt->tunneled.pod, 0);
	pkt->tunneled.pod = tunnel->geneve.pod;
	pkt->tunneled.port = tunnel->geneve.port;
	tunnel->is_open = 0;
	return lb_tunnel_route(fib, ctx, pkt, &pkt->tunneled.node) ? -LB_DROP_TUNNEL : LB_TUNNEL;
}

#endif
