/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Packets to a Service's address that no frontend takes: pings, and ports that no Service has. Only
 * if the address is for Services alone are they answered here: an external IP may be the address of
 * another machine, and k3s makes those of all nodes load-balancer IPs.
 */
#ifndef LB_VIP_H
#define LB_VIP_H

#include "conntrack.h"
#include "forward.h"
#include "frontend.h"
#include "masquerade.h"
#include "packet.h"
#include "rate_limit.h"
#include "rewrite.h"
#include "tunnel.h"
#include "verdict.h"

/* Whether the route in fib leads to a router, not to the destination itself. */
static __always_inline int lb_is_via_router(const struct bpf_fib_lookup *fib,
					    const struct lb_packet *pkt)
{
	const __be32 *hop = fib->ipv6_dst, *daddr = pkt->tuple.daddr.word;

	if (pkt->is_ipv4)
		return fib->family != LB_AF_INET || fib->ipv4_dst != daddr[3];
	return !!((hop[0] ^ daddr[0]) | (hop[1] ^ daddr[1]) | (hop[2] ^ daddr[2]) |
		  (hop[3] ^ daddr[3]));
}

/*
 * Whether this node would return the packet to the network that brought it here for a Service: out of
 * the same device, or to a router by another uplink (ECMP). Otherwise it is a router on the way to a
 * machine with this address, or has a local route.
 */
static __always_inline int lb_goes_back(void *ctx, const struct lb_packet *pkt,
					struct bpf_fib_lookup *fib)
{
	lb_fib_fill(fib, pkt, &pkt->tuple.saddr, &pkt->tuple.daddr, pkt->ifindex);
	if (lb_fib_result(lb_fib_find(fib, ctx, 0, pkt->now), 1))
		return 0;
	return fib->ifindex == pkt->ifindex ||
	       (lb_is_via_router(fib, pkt) && lb_is_host_device(fib->ifindex));
}

/* Whether the destination is here for Services alone. flags: of the address. Uses fib. */
static __always_inline int lb_is_vip_alone(void *ctx, const struct lb_packet *pkt, int hook,
					   __u64 flags, struct bpf_fib_lookup *fib)
{
	if (flags & LB_ADDR_NODE)
		return 0;
	if (flags & LB_ADDR_CLUSTER_IP)
		return 1;
	if (hook != LB_HOOK_HOST_INGRESS || !(flags & LB_ADDR_EXTERNAL))
		return 0;
	if (flags & (LB_ADDR_UNSERVED_DROP | LB_ADDR_UNSERVED_REJECT))
		return 1;
	return !(flags & LB_ADDR_UNSERVED_PASS) && lb_goes_back(ctx, pkt, fib);
}

/*
 * For a packet to a port that no Service has at this address. Unless an annotation asks for it, the
 * middle of a connection passes: it may be one of this node that netfilter gives this address.
 */
static __always_inline int lb_unserved(void *ctx, const struct lb_packet *pkt, int hook,
				       __u64 flags, struct bpf_fib_lookup *fib)
{
	int is_asked = LB_ADDR_CLUSTER_IP | LB_ADDR_UNSERVED_DROP | LB_ADDR_UNSERVED_REJECT;

	if (!(flags & is_asked) && !lb_is_opening(pkt))
		return LB_PASS;
	if (!lb_is_vip_alone(ctx, pkt, hook, flags, fib))
		return LB_PASS;
	if (!(flags & LB_ADDR_CLUSTER_IP) && flags & LB_ADDR_UNSERVED_DROP)
		return -LB_DROP_UNSERVED_PORT;
	return -LB_DROP_UNKNOWN_PORT;
}

static __always_inline int lb_is_echo_request(struct __sk_buff *skb, const struct lb_packet *pkt)
{
	__u8 request[2];

	if (!pkt->l4 || pkt->fragment || !lb_is_plain(pkt) ||
	    pkt->tuple.proto != (pkt->is_ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6) ||
	    lb_addr_is_martian_source(&pkt->tuple.saddr))
		return 0;
	return !bpf_skb_load_bytes(skb, pkt->l4, request, sizeof(request)) &&
	       request[0] == (pkt->is_ipv4 ? ICMP_ECHO : ICMPV6_ECHO_REQUEST) && !request[1];
}

/* Only the type and the order of the addresses change, so little of the checksum does. */
static __always_inline int lb_echo_rewrite(struct __sk_buff *skb, struct lb_packet *pkt)
{
	__u8 types[] = { pkt->is_ipv4 ? ICMP_ECHO : ICMPV6_ECHO_REQUEST, 0,
			 pkt->is_ipv4 ? ICMP_ECHOREPLY : ICMPV6_ECHO_REPLY, 0 };
	__be16 before, after;

	__builtin_memcpy(&before, types, sizeof(before));
	__builtin_memcpy(&after, types + sizeof(before), sizeof(after));
	pkt->to.saddr = pkt->tuple.daddr;
	pkt->to.daddr = pkt->tuple.saddr;
	if (bpf_l4_csum_replace(skb, pkt->l4 + offsetof(struct lb_icmp, csum), before, after,
				sizeof(after)) ||
	    bpf_skb_store_bytes(skb, pkt->l4, &after, sizeof(after), 0))
		return -1;
	if (pkt->is_ipv4)
		return lb_rewrite_ipv4_end(skb, pkt, &pkt->to, LB_IP_TTL, 0, LB_IPV4_END_HEADER);
	return lb_rewrite_ipv6_header(skb, pkt, &pkt->to, LB_IP_TTL);
}

/* LB_REDIRECT: the packet was a ping and is now the answer. */
static __always_inline int lb_echo(struct __sk_buff *skb, struct lb_packet *pkt, int hook,
				   struct bpf_fib_lookup *fib)
{
	__u64 flags;

	if (hook == LB_HOOK_POD_EGRESS || !lb_is_echo_request(skb, pkt) ||
	    (LB_HAS_DSR && hook == LB_HOOK_HOST_INGRESS && lb_tunnel_opened()))
		return LB_PASS;
	flags = lb_addr_flags_of(&pkt->tuple.daddr);
	if (!(flags & LB_ADDR_ECHO) || !lb_is_vip_alone(skb, pkt, hook, flags, fib))
		return LB_PASS;
	if (!lb_is_within_rate(LB_SCRATCH(echoes), LB_ECHOES_PER_SECOND))
		return -LB_DROP_ECHO;
	if (lb_echo_rewrite(skb, pkt))
		return -LB_DROP_REWRITE;
	return lb_return_to_sender(skb, pkt->l2, hook);
}

#endif
