/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Service decision at tc: what a packet that opens a flow to a Service becomes. */
#ifndef LB_SERVICE_H
#define LB_SERVICE_H

#include "affinity.h"
#include "backend.h"
#include "conntrack.h"
#include "filter.h"
#include "forward.h"
#include "frontend.h"
#include "hairpin.h"
#include "maps.h"
#include "masquerade.h"
#include "packet.h"
#include "source_range.h"

/* What an entry point knows about its packets. */
struct lb_tc_hook {
	__u8 hook;
	__u8 is_local_source;
};

/* A UDP packet to a connected socket of this host is not a request. */
static __always_inline int lb_has_connected_socket(struct __sk_buff *skb,
						   const struct lb_packet *pkt)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	int is_connected;

	if (pkt->tuple.proto != IPPROTO_UDP)
		return 0;
	if (pkt->is_ipv4) {
		tuple.ipv4.saddr = pkt->tuple.saddr.word[3];
		tuple.ipv4.daddr = pkt->tuple.daddr.word[3];
		tuple.ipv4.sport = pkt->tuple.sport;
		tuple.ipv4.dport = pkt->tuple.dport;
		sk = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &pkt->tuple.saddr, sizeof(struct lb_addr));
		__builtin_memcpy(tuple.ipv6.daddr, &pkt->tuple.daddr, sizeof(struct lb_addr));
		tuple.ipv6.sport = pkt->tuple.sport;
		tuple.ipv6.dport = pkt->tuple.dport;
		sk = bpf_sk_lookup_udp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return 0;
	is_connected = sk->dst_port != 0;
	bpf_sk_release(sk);
	return is_connected;
}

/* Looks up the address itself. The wildcard address, which stands for NodePorts, is no VIP. */
static __always_inline int lb_service_match_vip(struct lb_frontend_key *key, struct lb_match *match)
{
	return lb_filter_flags_of(&key->addr) & (LB_ADDR_CLUSTER_IP | LB_ADDR_EXTERNAL) &&
	       lb_frontend_lookup(key, match) && match->desc->type != LB_NODE_PORT;
}

/*
 * LB_NEXT with match filled, LB_PASS if there is no frontend, or a negative reason. Node addresses
 * are looked up only if the address itself is no frontend.
 */
static __always_inline int lb_service_match(struct __sk_buff *skb, const struct lb_packet *pkt,
					    struct lb_match *match)
{
	struct lb_frontend_key key = {
		.addr = pkt->tuple.daddr,
		.port = pkt->tuple.dport,
		.proto = pkt->tuple.proto,
	};
	__u64 flags;

	if (lb_service_match_vip(&key, match))
		return LB_NEXT;
	flags = lb_addr_flags_of(&pkt->tuple.daddr);
	if (flags & LB_ADDR_NODE_PORT && lb_node_port_lookup(&key, match))
		return lb_has_connected_socket(skb, pkt) ? LB_PASS : LB_NEXT;
	if (flags & LB_ADDR_CLUSTER_IP && !(flags & LB_ADDR_NODE))
		return -LB_DROP_UNKNOWN_PORT;
	return LB_PASS;
}

static __always_inline int lb_service_choose(const struct lb_desc *desc,
					     const struct lb_range *range,
					     const struct lb_addr *client, struct lb_choice *choice)
{
	int verdict = lb_source_range_check(desc, client);

	if (verdict)
		return verdict;
	if (desc->affinity_timeout)
		return lb_affinity_select(desc, range, client, choice);
	return lb_backend_select(range, choice);
}

/* Fills the destination side of the flow. */
static __always_inline int lb_service_select(const struct lb_packet *pkt,
					     const struct lb_match *match,
					     const struct lb_tc_hook *at, struct lb_flow *flow,
					     struct lb_choice *choice)
{
	const struct lb_desc *desc = match->desc;
	const struct lb_range *range = at->is_local_source ? &desc->local : &desc->others;
	int verdict = lb_service_choose(desc, range, &pkt->tuple.saddr, choice);

	if (verdict)
		return verdict;
	flow->to = pkt->tuple;
	flow->to.daddr = choice->backend->addr;
	flow->to.dport = choice->backend->port;
	flow->service = desc->service;
	flow->frontend = match->index;
	flow->desc_flags = desc->flags;
	flow->backend = choice->index;
	flow->generation = choice->backend->generation;
	flow->hook = at->hook;
	return LB_NEXT;
}

static __always_inline int lb_service_from_pod(struct __sk_buff *skb, const struct lb_packet *pkt,
					       const struct lb_match *match,
					       const struct lb_choice *choice, struct lb_flow *flow,
					       struct bpf_fib_lookup *fib)
{
	flow->reply_hook = LB_HOOK_POD_EGRESS;
	if (lb_is_hairpin(pkt, flow))
		return lb_hairpin_masquerade(pkt, flow);
	if (lb_must_masquerade(match->desc, choice))
		return lb_masquerade(skb, pkt, choice, flow, fib);
	return LB_NEXT;
}

/* A local backend may see the client's address; a remote one must reply through this node. */
static __always_inline int lb_service_from_outside(struct __sk_buff *skb,
						   const struct lb_packet *pkt,
						   const struct lb_match *match,
						   const struct lb_choice *choice,
						   struct lb_flow *flow, struct bpf_fib_lookup *fib)
{
	if (!(choice->backend->flags & LB_BACKEND_LOCAL) || lb_must_masquerade(match->desc, choice))
		return lb_masquerade(skb, pkt, choice, flow, fib);
	flow->reply_hook = LB_HOOK_HOST_EGRESS;
	flow->ifindex = skb->ifindex;
	return LB_NEXT;
}

/* Packets of the host that socket LB did not see: routed again, and replies go up the stack. */
static __always_inline int lb_service_from_host(struct __sk_buff *skb, const struct lb_packet *pkt,
						const struct lb_choice *choice,
						struct lb_flow *flow, struct bpf_fib_lookup *fib)
{
	flow->reply_hook = choice->backend->flags & LB_BACKEND_LOCAL ? LB_HOOK_POD_INGRESS :
								       LB_HOOK_HOST_INGRESS;
	flow->flags = LB_CT_TO_HOST;
	return lb_fib_lookup(fib, skb, pkt, &flow->to.daddr);
}

static __always_inline int lb_service_route(struct __sk_buff *skb, const struct lb_packet *pkt,
					    const struct lb_tc_hook *at,
					    const struct lb_match *match,
					    const struct lb_choice *choice, struct lb_flow *flow,
					    struct bpf_fib_lookup *fib)
{
	if (at->hook == LB_HOOK_POD_INGRESS)
		return lb_service_from_pod(skb, pkt, match, choice, flow, fib);
	if (at->hook == LB_HOOK_HOST_INGRESS)
		return lb_service_from_outside(skb, pkt, match, choice, flow, fib);
	return lb_service_from_host(skb, pkt, choice, flow, fib);
}

#endif
