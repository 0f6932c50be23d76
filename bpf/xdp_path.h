/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The path of a packet at XDP: requests whose backend is elsewhere, and the replies of masqueraded
 * flows. Decisions, maps and entries are those of tc, at the hook lb_host_ingress; each continues
 * what the other began. Everything else passes to tc, before any map has a trace of it but the choice
 * of a backend, which tc repeats (handed_choice.h).
 */
#ifndef LB_XDP_PATH_H
#define LB_XDP_PATH_H

#include "conntrack.h"
#include "counters.h"
#include "ct_match.h"
#include "ct_state.h"
#include "dsr.h"
#include "flow_begin.h"
#include "flow_record.h"
#include "forward.h"
#include "handed_choice.h"
#include "known_flow.h"
#include "masquerade.h"
#include "packet.h"
#include "service.h"
#include "stack_route.h"
#include "verifier.h"
#include "xdp_packet.h"

/* Fills fib. */
static __always_inline int lb_xdp_route_tunnel(struct bpf_fib_lookup *fib, struct xdp_md *ctx,
					       const struct lb_packet *pkt,
					       const struct lb_addr *node)
{
	if (lb_tunnel_route(fib, ctx, pkt, node))
		return -LB_XDP_ROUTE;
	return lb_xdp_check_route(pkt, fib);
}

/* Fills fib. */
static __always_inline int lb_xdp_route_known(struct bpf_fib_lookup *fib, struct xdp_md *ctx,
					      const struct lb_packet *pkt,
					      const struct lb_known_flow *known)
{
	int elsewhere = LB_CT_HAIRPIN | LB_CT_TO_HOST | LB_CT_TO_POD;

	if (LB_HAS_DSR && known->flags & LB_CT_DSR)
		return lb_xdp_route_tunnel(fib, ctx, pkt, &known->tunneled.node);
	if (!(known->flags & LB_CT_SNAT) || known->flags & elsewhere)
		return -LB_XDP_LOCAL;
	if (lb_fib_lookup_known(fib, ctx, pkt, known))
		return -LB_XDP_ROUTE;
	return lb_xdp_check_route(pkt, fib);
}

static __always_inline int lb_xdp_one_way(struct xdp_md *ctx, struct lb_packet *pkt,
					  struct bpf_fib_lookup *fib, struct lb_conntrack *entry,
					  int is_udp)
{
	int verdict;

	pkt->to = entry->to;
	verdict = lb_xdp_route_tunnel(fib, ctx, pkt, &pkt->tunneled.node);
	if (verdict)
		return verdict;
	lb_dsr_go_on(pkt, entry, is_udp);
	return LB_TUNNEL;
}

/* LB_NEXT: no entry applies. LB_REDIRECT: pkt->to is filled; LB_TUNNEL: pkt->tunneled is. */
static __always_inline int lb_xdp_known_flow(struct xdp_md *ctx, struct lb_packet *pkt,
					     struct bpf_fib_lookup *fib, int is_udp)
{
	struct lb_known_flow known = {};
	struct lb_conntrack *entry, *one_way;
	int verdict;

	if (lb_conntrack_find(pkt, LB_HOOK_HOST_INGRESS, &entry, &one_way, is_udp, 1))
		return LB_PASS;
	if (LB_HAS_DSR && one_way)
		return lb_xdp_one_way(ctx, pkt, fib, one_way, is_udp);
	if (!entry)
		return LB_NEXT;
	lb_known_fill(&known, entry);
	verdict = lb_xdp_route_known(fib, ctx, pkt, &known);
	if (verdict)
		return verdict;
	if (LB_HAS_DSR && known.flags & LB_CT_DSR)
		lb_dsr_track(pkt, entry, is_udp);
	else
		lb_conntrack_track(pkt, entry, is_udp);
	pkt->to = known.to;
	return known.flags & LB_CT_DSR ? LB_TUNNEL : LB_REDIRECT;
}

/* Fills fib, and the source side of the flow. */
static __always_inline int lb_xdp_route_new(struct bpf_fib_lookup *fib, struct xdp_md *ctx,
					    const struct lb_packet *pkt, const struct lb_desc *desc,
					    const struct lb_choice *choice, struct lb_flow *flow)
{
	const struct lb_addr *node = lb_dsr_node(pkt, desc, choice->backend);
	const struct lb_addr *source;
	int verdict;

	if (lb_is_known_local(choice->backend))
		return -LB_XDP_LOCAL;
	if (lb_is_loop(pkt, choice->backend))
		return -LB_XDP_REFUSED;
	if (node) {
		verdict = lb_service_to_tunnel(ctx, pkt, node, flow, fib);
		return verdict ? -LB_XDP_ROUTE : lb_xdp_check_route(pkt, fib);
	}
	if (lb_fib_lookup(fib, ctx, pkt, &flow->to))
		return -LB_XDP_ROUTE;
	source = lb_masquerade_source(fib, &choice->backend->addr, pkt->is_ipv4);
	if (!source)
		return -LB_XDP_LOCAL;
	if (lb_masquerade(pkt, flow, source))
		return -LB_XDP_REFUSED;
	verdict = lb_xdp_check_route(pkt, fib);
	flow->ifindex = pkt->ifindex;
	return verdict;
}

/* LB_REDIRECT: pkt->to is filled; LB_TUNNEL: pkt->tunneled is. */
static __always_inline int lb_xdp_new_flow(struct xdp_md *ctx, struct lb_packet *pkt,
					   struct bpf_fib_lookup *fib)
{
	struct lb_tc_hook at = { .hook = LB_HOOK_HOST_INGRESS };
	struct lb_choice choice = {};
	struct lb_match match = {};
	struct lb_flow *flow = lb_flow_new();
	int verdict;

	if (!flow)
		return -LB_XDP_REFUSED;
	if (pkt->tuple.proto != IPPROTO_UDP && !lb_ct_is_syn(pkt))
		return LB_PASS;
	lb_verifier_merge_states(pkt);
	/* Ports that no Service has are left to tc. */
	verdict = lb_service_match(ctx, pkt, LB_HOOK_RESERVED, fib, &match);
	if (verdict)
		return verdict < 0 ? -LB_XDP_REFUSED : LB_PASS;
	if (match.desc->flags & LB_DESC_RETRY)
		return LB_PASS;
	verdict = lb_service_select(pkt, &match, &at, flow, &choice);
	if (verdict)
		return verdict < 0 ? -LB_XDP_REFUSED : LB_PASS;
	verdict = lb_xdp_route_new(fib, ctx, pkt, match.desc, &choice, flow);
	if (!verdict && flow->flags & LB_CT_SNAT && lb_has_setting(LB_SETTING_SHARED_PORTS))
		verdict = -LB_XDP_STACK;
	if (verdict) {
		if (choice.backend->flags & LB_BACKEND_TRIAL)
			lb_trial_take_back(choice.index, match.desc->service, &pkt->tuple.saddr);
		lb_choice_hand_on(&pkt->tuple, &choice);
		return verdict;
	}
	if (lb_flow_begin(NULL, pkt, flow))
		return -LB_XDP_REFUSED;
	pkt->to = flow->to;
	return flow->flags & LB_CT_DSR ? LB_TUNNEL : LB_REDIRECT;
}

static __always_inline int lb_xdp_translate(struct xdp_md *ctx, struct lb_packet *pkt,
					    struct bpf_fib_lookup *fib)
{
	int is_udp = pkt->tuple.proto == IPPROTO_UDP;
	int verdict;

	if (lb_has_setting(LB_SETTING_VIA_STACK))
		return -LB_XDP_STACK;
	if (lb_xdp_is_csum_partial(ctx, pkt))
		return -LB_XDP_CHECKSUM;
	lb_verifier_merge_states(pkt);
	verdict = is_udp ? lb_xdp_known_flow(ctx, pkt, fib, 1) :
			   lb_xdp_known_flow(ctx, pkt, fib, 0);
	return verdict ? verdict : lb_xdp_new_flow(ctx, pkt, fib);
}

static __always_inline int lb_xdp_request(struct xdp_md *ctx)
{
	struct bpf_fib_lookup fib __attribute__((aligned(8))) = {};
	struct lb_packet pkt;
	int verdict;

	verdict = lb_xdp_parse(ctx, &pkt);
	if (verdict == LB_PASS)
		return XDP_PASS;
	if (!verdict)
		verdict = lb_xdp_translate(ctx, &pkt, &fib);
	if (verdict == LB_REDIRECT)
		verdict = lb_xdp_rewrite(ctx, &pkt, &pkt.to, &fib);
	else if (verdict == LB_TUNNEL)
		verdict = lb_xdp_wrap(ctx, &pkt, &fib);
	lb_flow_end_report();
	if (verdict == LB_PASS)
		return XDP_PASS;
	lb_count_xdp_result(-verdict);
	return verdict ? XDP_PASS : lb_xdp_send(&pkt, &fib);
}

#endif
