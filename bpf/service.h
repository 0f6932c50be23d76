/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Service decision at tc: what a packet that opens a flow to a Service becomes. */
#ifndef LB_SERVICE_H
#define LB_SERVICE_H

#include "affinity.h"
#include "backend.h"
#include "conntrack.h"
#include "dsr.h"
#include "filter.h"
#include "forward.h"
#include "frontend.h"
#include "hairpin.h"
#include "handed_choice.h"
#include "limits.h"
#include "listener.h"
#include "maps.h"
#include "masquerade.h"
#include "packet.h"
#include "retry.h"
#include "source_range.h"
#include "unknown_connection.h"
#include "vip.h"

/* What an entry point knows about its packets. */
struct lb_tc_hook {
	__u8 hook;
	__u8 is_local_source;
};

/*
 * LB_NEXT with match filled, LB_PASS if there is no frontend, or a negative reason. NodePorts are
 * looked up only if the address itself is not a frontend. Uses fib.
 */
static __always_inline int lb_service_match(void *ctx, const struct lb_packet *pkt, int hook,
					    struct bpf_fib_lookup *fib, struct lb_match *match)
{
	struct lb_frontend_key key = {
		.addr = pkt->tuple.daddr,
		.port = pkt->tuple.dport,
		.proto = pkt->tuple.proto,
	};
	__u64 flags = 0;
	int is_vip;

	if (lb_addr_is_martian_source(&pkt->tuple.saddr))
		return LB_PASS;
	if (lb_is_cluster_ip_of_node(&key.addr) && lb_has_listener(ctx, &pkt->tuple))
		return LB_PASS;
	is_vip = lb_vip_lookup(&key, match);
	if (!is_vip || lb_filter_flags_of(&pkt->tuple.daddr) & LB_ADDR_NODE)
		flags = lb_addr_flags_of(&pkt->tuple.daddr);
	if (!is_vip && !(flags & LB_ADDR_NODE_PORT && lb_node_port_lookup(&key, match)))
		return lb_unserved(ctx, pkt, hook, flags, fib);
	return flags & LB_ADDR_NODE && lb_has_connected_socket(ctx, &pkt->tuple) ? LB_PASS :
										   LB_NEXT;
}

static __always_inline int lb_service_choose(const struct lb_opening *opening,
					     struct lb_choice *choice)
{
	const struct lb_desc *desc = opening->desc;
	int verdict = lb_source_range_check(desc, opening->client);
	struct lb_limit *limit;

	if (verdict)
		return verdict;
	limit = lb_limit_of(desc->flags, desc->service);
	verdict = lb_limit_check_client(opening, limit);
	if (verdict)
		return verdict;
	return lb_affinity_select(opening, choice);
}

/* Fills the destination side of the flow, except the backend's index and serial. */
static __always_inline void lb_flow_lead_to(struct lb_flow *flow, const struct lb_packet *pkt,
					    const struct lb_match *match,
					    const struct lb_addr *addr, __be16 port)
{
	flow->to = pkt->tuple;
	flow->to.daddr = *addr;
	flow->to.dport = port;
	flow->service = match->desc->service;
	flow->frontend = match->index;
	flow->desc_flags = match->desc->flags;
}

static __always_inline void lb_flow_fill(const struct lb_packet *pkt, const struct lb_match *match,
					 const struct lb_choice *choice, __u8 hook,
					 struct lb_flow *flow)
{
	lb_flow_lead_to(flow, pkt, match, &choice->backend->addr, choice->backend->port);
	flow->backend = choice->index;
	flow->serial = choice->backend->serial;
	flow->hook = hook;
}

/* Chooses a backend, and fills the destination side of the flow. */
static __always_inline int lb_service_select(const struct lb_packet *pkt,
					     const struct lb_match *match,
					     const struct lb_tc_hook *at, struct lb_flow *flow,
					     struct lb_choice *choice)
{
	const struct lb_desc *desc = match->desc;
	struct lb_opening opening = {};
	int verdict;

	lb_opening_fill(&opening, desc, match->index, at->is_local_source);
	lb_opening_set_client(&opening, &pkt->tuple.saddr, bpf_ntohs(pkt->tuple.sport));
	opening.hook = at->hook;
	opening.retry = lb_retry_recall(pkt, desc, flow);
	if (LB_HAS_XDP && at->hook == LB_HOOK_HOST_INGRESS)
		opening.number = lb_choice_take(&pkt->tuple);
	verdict = lb_service_choose(&opening, choice);
	if (verdict)
		return verdict;
	lb_flow_fill(pkt, match, choice, at->hook, flow);
	return LB_NEXT;
}

/*
 * A packet from a tunnel, for the pod chosen by its sender; it is returned if the frontend or the
 * endpoint is not known here. A NodePort may be on the sender's address, where the client sent it.
 */
static __always_inline int lb_service_accept(void *ctx, struct lb_packet *pkt,
					     struct lb_match *match, const struct lb_geneve *geneve,
					     struct lb_flow *flow, struct bpf_fib_lookup *fib)
{
	struct lb_frontend_key key = {
		.addr = pkt->tuple.daddr,
		.port = pkt->tuple.dport,
		.proto = pkt->tuple.proto,
	};

	if (!lb_addr_is_ipv4(&geneve->pod) != !pkt->is_ipv4)
		return -LB_DROP_TUNNEL;
	if ((!lb_vip_lookup(&key, match) && !lb_node_port_lookup(&key, match)) ||
	    !lb_dsr_is_here(geneve, match->desc, key.proto, flow)) {
		pkt->routing |= LB_IS_RETURNED;
		return LB_TUNNEL;
	}
	lb_flow_lead_to(flow, pkt, match, &geneve->pod, geneve->port);
	flow->hook = LB_HOOK_HOST_INGRESS;
	flow->reply_hook = lb_dsr_reply_hook(fib, ctx, pkt, geneve);
	flow->flags = LB_CT_TUNNELED;
	return LB_NEXT;
}

/* The flow goes to the pod's node in a tunnel, along the route in fib. */
static __always_inline int lb_service_to_tunnel(void *ctx, const struct lb_packet *pkt,
						const struct lb_addr *node, struct lb_flow *flow,
						struct bpf_fib_lookup *fib)
{
	flow->tunneled.node = *node;
	flow->flags = LB_CT_DSR;
	return lb_tunnel_route(fib, ctx, pkt, node);
}

/*
 * A packet in the middle of an unknown connection is sent to where a hash of its client leads, as
 * on every other node: its node may be gone, or the address has moved here. LB_PASS if that is
 * impossible, or does not lead to another node. To a node's own address, and with a SYN, come
 * answers to connections of this node too, and to those that another NAT masquerades.
 */
static __always_inline int lb_dsr_resume(void *ctx, const struct lb_packet *pkt,
					 const struct lb_match *match, struct lb_choice *choice,
					 struct lb_flow *flow, struct bpf_fib_lookup *fib)
{
	const struct lb_desc *desc = match->desc;
	const struct lb_addr *node;

	if (!(desc->flags & LB_DESC_DSR) || !lb_scheduler_hashes(desc) || !desc->others.table ||
	    desc->affinity_timeout || pkt->tcp_flags & LB_TCP_SYN ||
	    lb_addr_flags_of(&pkt->tuple.daddr) & LB_ADDR_NODE ||
	    lb_source_range_check(desc, &pkt->tuple.saddr))
		return LB_PASS;
	if (lb_backend_at(lb_scheduler_stateless_slot(desc, &desc->others, &pkt->tuple.saddr,
						      bpf_ntohs(pkt->tuple.sport)),
			  choice))
		return LB_PASS;
	node = lb_dsr_node(pkt, desc, choice->backend);
	if (!node)
		return LB_PASS;
	lb_flow_fill(pkt, match, choice, LB_HOOK_HOST_INGRESS, flow);
	return lb_service_to_tunnel(ctx, pkt, node, flow, fib);
}

static __always_inline int lb_service_from_pod(void *ctx, struct lb_packet *pkt,
					       const struct lb_match *match,
					       const struct lb_choice *choice, struct lb_flow *flow,
					       struct bpf_fib_lookup *fib)
{
	int verdict;

	flow->reply_hook = LB_HOOK_POD_EGRESS;
	if (lb_is_hairpin(pkt, flow))
		return lb_hairpin_masquerade(pkt, flow);
	if (!lb_must_masquerade(match->desc, choice))
		return LB_NEXT;
	verdict = lb_fib_lookup_any_size(fib, ctx, pkt, &flow->to);
	if (verdict)
		return verdict;
	return lb_masquerade(pkt, flow, lb_masquerade_source_for(choice, 0, pkt, fib));
}

/*
 * Whether the route to a pod of this node leads back out of the device on which the packet came in:
 * the pod is beside this node, not behind it, and would answer the client without passing this
 * node. This is so for pods on the uplink's own network (macvlan, SR-IOV, AWS's branch interfaces).
 * Policy Local guarantees the client's address nevertheless.
 */
static __always_inline int lb_is_beside(void *ctx, const struct lb_packet *pkt,
					const struct lb_desc *desc, const struct lb_choice *choice,
					struct bpf_fib_lookup *fib)
{
	const struct lb_backend *backend = choice->backend;
	int is_beside;

	if (!(backend->flags & LB_BACKEND_LOCAL) || desc->flags & LB_DESC_EXTERNAL_LOCAL ||
	    lb_is_own_process(backend))
		return 0;
	lb_fib_fill(fib, pkt, &pkt->tuple.saddr, &backend->addr, pkt->ifindex);
	is_beside = !lb_fib_ask(fib, ctx, pkt, lb_wire_len(pkt)) && fib->ifindex == pkt->ifindex;
	fib->ifindex = 0;
	return is_beside;
}

/*
 * Whether the backend is the address of a Service, and the packet has been here before:
 * masqueraded, sent there, and returned by the network. Without this it would loop until its TTL
 * expires.
 */
static __always_inline int lb_is_loop(const struct lb_packet *pkt, const struct lb_backend *backend)
{
	int is_vip = lb_filter_flags_of(&backend->addr) & (LB_ADDR_CLUSTER_IP | LB_ADDR_EXTERNAL);

	return is_vip && lb_filter_flags_of(&pkt->tuple.saddr) & LB_ADDR_NODE &&
	       lb_addr_flags_of(&backend->addr) & (LB_ADDR_CLUSTER_IP | LB_ADDR_EXTERNAL) &&
	       lb_addr_flags_of(&pkt->tuple.saddr) & LB_ADDR_NODE;
}

/*
 * A backend on this node may see the client's address; any other must reply through this node.
 * If the endpoint does not name this node, the route decides which it is.
 */
static __always_inline int lb_service_from_outside(void *ctx, struct lb_packet *pkt,
						   const struct lb_match *match,
						   const struct lb_choice *choice,
						   struct lb_flow *flow, struct bpf_fib_lookup *fib)
{
	int is_masqueraded = lb_must_masquerade(match->desc, choice);
	int is_beside = lb_is_beside(ctx, pkt, match->desc, choice, fib);
	const struct lb_addr *node = lb_dsr_node(pkt, match->desc, choice->backend);
	const struct lb_addr *source;
	int verdict;

	if (lb_is_loop(pkt, choice->backend))
		return -LB_DROP_LOOP;
	if (node) {
		verdict = lb_service_to_tunnel(ctx, pkt, node, flow, fib);
		if (verdict != -LB_DROP_TOO_BIG || !(pkt->routing & LB_MAY_FRAGMENT))
			return verdict;
		flow->to.saddr = pkt->tuple.saddr;
		flow->flags = 0;
	}
	flow->ifindex = pkt->ifindex;
	if (is_masqueraded || is_beside || !lb_is_known_local(choice->backend)) {
		verdict = lb_fib_lookup_any_size(fib, ctx, pkt, &flow->to);
		if (verdict)
			return verdict;
		source = lb_masquerade_source_for(choice, is_beside, pkt, fib);
		if (is_masqueraded || source)
			return lb_masquerade(pkt, flow, source);
		fib->ifindex = 0;
		pkt->routing &= ~LB_VIA_STACK;
	}
	flow->reply_hook = LB_HOOK_HOST_EGRESS;
	return LB_NEXT;
}

/* Packets of the host that socket LB did not see: routed again, and replies go up the stack. */
static __always_inline int lb_service_from_host(void *ctx, const struct lb_packet *pkt,
						const struct lb_choice *choice,
						struct lb_flow *flow, struct bpf_fib_lookup *fib)
{
	int verdict = lb_fib_lookup(fib, ctx, pkt, &flow->to);

	if (verdict)
		return verdict;
	flow->flags = LB_CT_TO_HOST;
	flow->reply_hook = LB_HOOK_HOST_INGRESS;
	if (!lb_masquerade_source_for(choice, 0, pkt, fib)) {
		flow->flags |= LB_CT_TO_POD;
		flow->reply_hook = LB_HOOK_POD_INGRESS;
	}
	return LB_NEXT;
}

static __always_inline int lb_service_route(void *ctx, struct lb_packet *pkt,
					    const struct lb_tc_hook *at,
					    const struct lb_match *match,
					    const struct lb_choice *choice, struct lb_flow *flow,
					    struct bpf_fib_lookup *fib)
{
	if (at->hook == LB_HOOK_POD_INGRESS)
		return lb_service_from_pod(ctx, pkt, match, choice, flow, fib);
	if (at->hook == LB_HOOK_HOST_INGRESS)
		return lb_service_from_outside(ctx, pkt, match, choice, flow, fib);
	return lb_service_from_host(ctx, pkt, choice, flow, fib);
}

/* For a packet that opens no flow; found: by lb_service_match(). Fills choice, flow and fib. */
static __always_inline int lb_service_go_on(void *ctx, struct lb_packet *pkt, int hook,
					    const struct lb_match *match, int found,
					    struct lb_choice *choice, struct lb_flow *flow,
					    struct bpf_fib_lookup *fib)
{
	int verdict = LB_PASS;

	if (found == LB_PASS)
		return LB_PASS;
	if (LB_HAS_DSR && hook == LB_HOOK_HOST_INGRESS && !found)
		verdict = lb_dsr_resume(ctx, pkt, match, choice, flow, fib);
	return verdict == LB_PASS ? lb_unknown_connection(ctx, pkt, hook, match, found) : verdict;
}

/* Fills match, choice, flow and fib. */
static __always_inline int lb_service_decide(struct __sk_buff *skb, struct lb_packet *pkt,
					     const struct lb_tc_hook *at, struct lb_match *match,
					     struct lb_choice *choice, struct lb_flow *flow,
					     struct bpf_fib_lookup *fib)
{
	int verdict = lb_service_match(skb, pkt, at->hook, fib, match);

	if (!lb_is_opening(pkt))
		return lb_service_go_on(skb, pkt, at->hook, match, verdict, choice, flow, fib);
	if (verdict)
		return verdict;
	if (at->hook == LB_HOOK_HOST_EGRESS && lb_is_closed_to_agent(match->desc) &&
	    lb_is_packet_of_agent(skb))
		return LB_PASS;
	verdict = lb_service_select(pkt, match, at, flow, choice);
	if (verdict)
		return verdict;
	return lb_service_route(skb, pkt, at, match, choice, flow, fib);
}

#endif
