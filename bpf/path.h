/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The path of a packet at tc: known flow, new flow, or not for a Service; and the one exit. */
#ifndef LB_PATH_H
#define LB_PATH_H

#include "conntrack.h"
#include "counters.h"
#include "ct_match.h"
#include "ct_state.h"
#include "direct_udp.h"
#include "dsr_error.h"
#include "filter.h"
#include "flow_begin.h"
#include "flow_record.h"
#include "forward.h"
#include "fragment.h"
#include "frontend.h"
#include "hairpin.h"
#include "icmp_nat.h"
#include "known_flow.h"
#include "masquerade.h"
#include "mss.h"
#include "own_udp.h"
#include "reject.h"
#include "rewrite.h"
#include "sctp_csum.h"
#include "service.h"
#include "service_cidr.h"
#include "stack_route.h"
#include "tunnel_end.h"
#include "verifier.h"
#include "vip.h"

/* Sends the rewritten packet to where it must go. fib is filled if that was looked up here. */
static __always_inline int lb_send(struct __sk_buff *skb, const struct lb_packet *pkt, int hook,
				   int flags, struct bpf_fib_lookup *fib)
{
	if (LB_HAS_DSR && hook == LB_HOOK_HOST_INGRESS)
		lb_tunnel_close();
	if (flags & LB_CT_HAIRPIN)
		return lb_hairpin_send(skb, pkt);
	if (pkt->routing & LB_VIA_STACK)
		lb_stack_mark(skb);
	if (fib->ifindex)
		return lb_forward(skb, pkt, fib);
	return LB_PASS;
}

/* LB_TUNNEL, with the route in fib. The client is told the reason if the packet is dropped. */
static __always_inline int lb_known_to_tunnel(struct __sk_buff *skb, struct lb_packet *pkt,
					      const struct lb_tunneled *to,
					      struct bpf_fib_lookup *fib)
{
	int verdict = lb_tunnel_route(fib, skb, pkt, &to->node);

	if (verdict)
		return verdict;
	lb_fragment_store(pkt);
	pkt->tunneled = *to;
	return LB_TUNNEL;
}

/* Fills fib if the packet must be redirected from here. */
static __always_inline int lb_route(struct bpf_fib_lookup *fib, struct __sk_buff *skb,
				    struct lb_packet *pkt, const struct lb_known_flow *known,
				    int hook)
{
	if (lb_needs_fib_lookup(known))
		return lb_stack_or_fib(fib, skb, pkt, known);
	if (hook == LB_HOOK_HOST_EGRESS && known->ifindex && known->ifindex != skb->ifindex)
		return lb_fib_lookup_reply(fib, skb, pkt, &known->to, known->ifindex);
	return LB_NEXT;
}

/* LB_NEXT: no entry applies to this packet at this hook. */
static __always_inline int lb_known_flow(struct __sk_buff *skb, struct lb_packet *pkt, int hook,
					 struct bpf_fib_lookup *fib)
{
	struct lb_known_flow *known = LB_SCRATCH(known);
	int verdict;

	if (!known)
		return LB_PASS;
	verdict = lb_known_find(pkt, hook, known);
	if (verdict != LB_REDIRECT)
		return verdict;
	if (known->is_refusal && lb_retry_hides_reset(pkt, known))
		return LB_HIDE;
	if (LB_HAS_DSR && hook == LB_HOOK_HOST_INGRESS && known->flags & LB_CT_DSR)
		return lb_known_to_tunnel(skb, pkt, &known->tunneled, fib);
	if (LB_HAS_DSR && hook == LB_HOOK_HOST_EGRESS && known->flags & LB_CT_TUNNELED)
		lb_mss_clamp(skb, pkt);
	verdict = lb_route(fib, skb, pkt, known, hook);
	if (verdict)
		return verdict;
	if (lb_needs_fib_lookup(known) && fib->ifindex)
		lb_known_follow_route(pkt, known, fib->ifindex);
	lb_fragment_store(pkt);
	pkt->to = known->to;
	if (pkt->routing & LB_VIA_STACK)
		lb_stack_enter(pkt, &pkt->tuple, known->direction);
	if (lb_rewrite(skb, pkt, &pkt->to, lb_known_ttl(pkt, known)))
		return -LB_DROP_REWRITE;
	return lb_send(skb, pkt, hook, known->flags, fib);
}

/*
 * An ICMP error about a packet of a known flow is translated like a packet of the flow in the same
 * direction. It does not change the state of the flow, because errors are easily forged, unless it
 * quotes the SYN of a connection that is retried. It is
 * never answered with an error, and passes untouched if it does not match in every respect.
 */
static __always_inline int lb_known_error(struct __sk_buff *skb, struct lb_packet *pkt, int hook,
					  struct bpf_fib_lookup *fib)
{
	struct lb_packet *quote = lb_icmp_quote(skb, pkt);
	struct lb_known_flow *known = LB_SCRATCH(known);
	int verdict;

	if (!quote || !known)
		return lb_echo(skb, pkt, hook, fib);
	verdict = quote->reverse.proto == IPPROTO_UDP ?
			  lb_known_quoted(pkt, quote, hook, known, 1) :
			  lb_known_quoted(pkt, quote, hook, known, 0);
	if (verdict == LB_HIDE)
		return LB_HIDE;
	if (LB_HAS_DSR && verdict != LB_REDIRECT && hook == LB_HOOK_HOST_INGRESS)
		return lb_dsr_error(skb, pkt, quote);
	if (verdict != LB_REDIRECT)
		return lb_routed_error(skb, pkt, quote, hook);
	if (LB_HAS_DSR && hook == LB_HOOK_HOST_INGRESS && known->flags & LB_CT_DSR)
		return lb_known_to_tunnel(skb, pkt, &known->tunneled, fib) == LB_TUNNEL ?
			       LB_TUNNEL :
			       LB_PASS;
	if (lb_route(fib, skb, pkt, known, hook))
		return LB_PASS;
	pkt->to = known->to;
	if (pkt->routing & LB_VIA_STACK)
		lb_stack_enter(pkt, &quote->reverse, known->direction);
	if (lb_icmp_rewrite(skb, pkt, quote, lb_known_ttl(pkt, known)))
		return -LB_DROP_REWRITE;
	return lb_send(skb, pkt, hook, known->flags, fib);
}

/* Parses the packet. LB_NEXT: it is neither part of a known flow nor an error about one. */
static __always_inline int lb_known(struct __sk_buff *skb, struct lb_packet *pkt, int hook,
				    struct bpf_fib_lookup *fib, int l2)
{
	if (lb_fragment_parse(skb, pkt, l2))
		return lb_known_error(skb, pkt, hook, fib);
	return lb_known_flow(skb, pkt, hook, fib);
}

/* flow->to becomes what the packet is between arriving and leaving. */
static __always_inline void lb_stack_enter_new(struct lb_packet *pkt, struct lb_flow *flow,
					       struct bpf_fib_lookup *fib)
{
	pkt->routing |= LB_VIA_STACK;
	pkt->to = flow->to;
	lb_stack_enter(pkt, &pkt->tuple, LB_DIR_ORIGINAL);
	flow->to = pkt->to;
	fib->ifindex = 0;
}

static __always_inline int lb_open_flow(struct __sk_buff *skb, struct lb_packet *pkt,
					const struct lb_tc_hook *at, struct lb_match *match,
					struct bpf_fib_lookup *fib)
{
	struct lb_flow *flow = lb_flow_new();
	struct lb_tunnel *tunnel = NULL;
	struct lb_choice choice = {};
	int verdict;

	if (!flow)
		return -LB_DROP_CONNTRACK_FULL;
	if (!lb_has_transport(pkt) || (!lb_is_opening(pkt) && !lb_may_go_on(pkt, at->hook)))
		return LB_PASS;
	if (LB_HAS_DSR && at->hook == LB_HOOK_HOST_INGRESS)
		lb_tunnel_note(pkt);
	lb_verifier_merge_states(pkt);
	if (LB_HAS_DSR && at->hook == LB_HOOK_HOST_INGRESS)
		tunnel = lb_tunnel_arrived();
	if (tunnel && !lb_is_opening(pkt))
		return LB_PASS;
	if (tunnel)
		verdict = lb_service_accept(skb, pkt, match, &tunnel->geneve, flow, fib);
	else
		verdict = lb_service_decide(skb, pkt, at, match, &choice, flow, fib);
	if (verdict)
		return verdict;
	if (LB_HAS_DSR && pkt->routing & LB_IS_ERROR) {
		pkt->tunneled = flow->tunneled;
		return LB_TUNNEL;
	}
	verdict = lb_flow_begin(skb, pkt, flow);
	if (verdict)
		return verdict;
	if (flow->flags & LB_CT_SNAT && !(flow->flags & LB_CT_HAIRPIN) && lb_stack_is_wanted(pkt))
		lb_stack_enter_new(pkt, flow, fib);
	lb_fragment_store(pkt);
	if (flow->flags & LB_CT_DSR) {
		pkt->tunneled = flow->tunneled;
		return LB_TUNNEL;
	}
	if (lb_rewrite(skb, pkt, &flow->to, lb_next_ttl(pkt, fib)))
		return -LB_DROP_REWRITE;
	return lb_send(skb, pkt, at->hook, flow->flags, fib);
}

static __always_inline int lb_new_flow(struct __sk_buff *skb, struct lb_packet *pkt,
				       const struct lb_tc_hook *at, struct bpf_fib_lookup *fib)
{
	struct lb_match match = {};
	int verdict = lb_open_flow(skb, pkt, at, &match, fib);

	if (LB_HAS_DSR && pkt->routing & LB_IS_ERROR)
		return verdict == LB_TUNNEL ? LB_TUNNEL : LB_PASS;
	if (verdict < 0)
		lb_flow_fail(pkt, &match, at->hook, verdict);
	return verdict;
}

/* Counts and answers a dropped packet. Pod devices come and go, so they are counted as one. */
static __always_inline int lb_tc_action(struct __sk_buff *skb, const struct lb_packet *pkt,
					int hook, int verdict, __u32 mtu)
{
	int is_pod = hook == LB_HOOK_POD_INGRESS || hook == LB_HOOK_POD_EGRESS;

	if (verdict == LB_REDIRECT)
		return TC_ACT_REDIRECT;
	if (verdict == LB_HIDE)
		return TC_ACT_SHOT;
	if (verdict >= 0)
		return TC_ACT_UNSPEC;
	lb_count_drop_at(is_pod ? LB_DROP_AT_POD : skb->ifindex, lb_reason_of(verdict));
	if (lb_reject(skb, pkt, -verdict, hook, mtu) == LB_REDIRECT)
		return TC_ACT_REDIRECT;
	return TC_ACT_SHOT;
}

/*
 * The one exit at tc. The record of an ended flow and the SCTP checksum come last: any earlier, the
 * verifier would explore their code many times.
 */
static __always_inline int lb_tc_exit(struct __sk_buff *skb, const struct lb_packet *pkt, int hook,
				      int verdict, __u32 mtu)
{
	int action = lb_tc_action(skb, pkt, hook, verdict, mtu);

	lb_flow_end_report();
	if (pkt->tuple.proto == IPPROTO_SCTP)
		lb_sctp_csum_update(skb);
	return action;
}

/* Packets to a Service or node address: requests, and replies of masqueraded flows. */
static __always_inline int lb_tc_request(struct __sk_buff *skb, const struct lb_tc_hook *at, int l2)
{
	struct bpf_fib_lookup fib __attribute__((aligned(8))) = {};
	struct lb_summary summary = {};
	struct lb_packet pkt;
	int verdict;

	if (!lb_summarize(skb, l2, &summary))
		return TC_ACT_UNSPEC;
	if (LB_HAS_DSR && at->hook == LB_HOOK_POD_INGRESS &&
	    lb_tunnel_is_forged(skb, l2, &summary)) {
		lb_count_drop_at(LB_DROP_AT_POD, LB_DROP_TUNNEL);
		return TC_ACT_SHOT;
	}
	if (!lb_filter_may_be_request(&summary, at->hook) &&
	    !lb_direct_udp_may_be(&summary, at->hook))
		return TC_ACT_UNSPEC;
	if (LB_HAS_DSR && at->hook == LB_HOOK_HOST_INGRESS) {
		verdict = lb_tunnel_receive(skb, l2, &summary);
		if (verdict == LB_REDIRECT)
			return TC_ACT_REDIRECT;
		if (verdict < 0) {
			lb_count_drop_at(skb->ifindex, -verdict);
			return TC_ACT_SHOT;
		}
	}
	verdict = lb_known(skb, &pkt, at->hook, &fib, l2);
	if (!verdict)
		verdict = lb_new_flow(skb, &pkt, at, &fib);
	if (verdict == LB_PASS && at->hook == LB_HOOK_POD_INGRESS)
		lb_direct_udp_sent(&pkt);
	if (LB_HAS_DSR && at->hook == LB_HOOK_HOST_INGRESS) {
		if (verdict == LB_TUNNEL && pkt.routing & LB_IS_RETURNED)
			verdict = lb_tunnel_return(&fib, skb, &pkt);
		if (verdict == LB_TUNNEL)
			verdict = lb_tunnel_send(skb, &pkt, &fib);
		else if (verdict == LB_PASS && lb_tunnel_opened())
			verdict = -LB_DROP_TUNNEL;
		if (verdict < 0)
			lb_tunnel_close();
	}
	return lb_tc_exit(skb, &pkt, at->hook, verdict, fib.tot_len);
}

static __always_inline int lb_is_own(const struct __sk_buff *skb, const struct lb_tc_hook *at)
{
	return at->is_local_source && skb->sk;
}

/*
 * Packets that leave: replies of backends and, on a host device, the host's requests to a VIP. After
 * lb_known() the filter is asked again: the verifier would explore it once for each stored result.
 */
static __always_inline int lb_tc_reply(struct __sk_buff *skb, const struct lb_tc_hook *at, int l2)
{
	struct bpf_fib_lookup fib __attribute__((aligned(8))) = {};
	struct lb_summary summary = {};
	struct lb_packet pkt;
	int verdict;

	if (at->hook == LB_HOOK_HOST_EGRESS && lb_is_unused_vip(skb, l2, lb_is_own(skb, at))) {
		lb_count_drop_at(skb->ifindex, LB_DROP_UNUSED_ADDRESS);
		return TC_ACT_SHOT;
	}
	if (!lb_summarize(skb, l2, &summary) ||
	    (!lb_filter_may_be_own(summary.proto, summary.saddr, summary.sport) &&
	     !(lb_is_own(skb, at) && lb_filter_may_be_request(&summary, at->hook)) &&
	     !lb_filter_may_be_reply(&summary, at->hook) && !lb_filter_may_be_routed(&summary)))
		return TC_ACT_UNSPEC;
	verdict = lb_known(skb, &pkt, at->hook, &fib, l2);
	if (!verdict)
		verdict = lb_routed(skb, &pkt);
	if (!verdict &&
	    lb_filter_may_be_own(pkt.tuple.proto, pkt.tuple.saddr.word[3], pkt.tuple.sport)) {
		lb_verifier_merge_states(&pkt);
		lb_own_udp_sent(skb, &pkt);
	}
	if (!verdict && lb_is_own(skb, at))
		verdict = lb_new_flow(skb, &pkt, at, &fib);
	return lb_tc_exit(skb, &pkt, at->hook, verdict, fib.tot_len);
}

#endif
