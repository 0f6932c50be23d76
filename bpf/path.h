/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The path of a packet at tc: known flow, new flow, or not for a Service; and the one exit. */
#ifndef LB_PATH_H
#define LB_PATH_H

#include "conntrack.h"
#include "counters.h"
#include "ct_match.h"
#include "ct_state.h"
#include "filter.h"
#include "flow_record.h"
#include "forward.h"
#include "fragment.h"
#include "frontend.h"
#include "hairpin.h"
#include "icmp_nat.h"
#include "reject.h"
#include "rewrite.h"
#include "sctp_csum.h"
#include "service.h"
#include "service_cidr.h"
#include "snat.h"
#include "verifier.h"

/* Sends the rewritten packet to where it must go. fib is filled if that was looked up here. */
static __always_inline int lb_send(struct __sk_buff *skb, const struct lb_packet *pkt, int flags,
				   __u32 ifindex, struct bpf_fib_lookup *fib)
{
	if (flags & LB_CT_HAIRPIN)
		return lb_hairpin_send(skb, pkt);
	if (fib->ifindex)
		return lb_forward(skb, pkt, fib);
	if (ifindex && ifindex != skb->ifindex)
		return lb_forward_via_neigh(skb, pkt, ifindex);
	return LB_PASS;
}

/* Masqueraded flows are routed at tc in both directions, flows of the host only as they leave. */
static __always_inline int lb_needs_fib_lookup(const struct lb_conntrack *entry)
{
	if (entry->flags & LB_CT_HAIRPIN)
		return 0;
	if (entry->flags & LB_CT_TO_HOST)
		return entry->direction == LB_DIR_ORIGINAL;
	return entry->flags & LB_CT_SNAT;
}

/* LB_NEXT: no entry applies to this packet at this hook. */
static __always_inline int lb_known_flow(struct __sk_buff *skb, struct lb_packet *pkt, int hook,
					 struct bpf_fib_lookup *fib)
{
	struct lb_conntrack *entry = lb_conntrack_lookup(&pkt->tuple);
	__u32 ifindex;
	int verdict;
	int flags;

	if (entry && entry->hook == LB_HOOK_RESERVED)
		return LB_PASS;
	if (!entry || !lb_conntrack_applies(pkt, entry, hook))
		return LB_NEXT;
	if (lb_needs_fib_lookup(entry)) {
		verdict = lb_fib_lookup(fib, skb, pkt, &entry->to.daddr);
		if (verdict)
			return verdict;
	}
	lb_fragment_store(pkt);
	if (lb_rewrite(skb, pkt, &entry->to, lb_next_ttl(pkt, fib)))
		return -LB_DROP_REWRITE;
	flags = entry->flags;
	ifindex = entry->ifindex;
	lb_conntrack_track(pkt, entry);
	return lb_send(skb, pkt, flags, ifindex, fib);
}

/*
 * An ICMP error about a packet of a known flow is translated like a packet of the flow in the same
 * direction. It does not change the state of the flow, because errors are easily forged. It is
 * never answered with an error, and passes untouched if it does not match in every respect.
 */
static __always_inline int lb_known_error(struct __sk_buff *skb, struct lb_packet *pkt, int hook,
					  struct bpf_fib_lookup *fib)
{
	struct lb_packet *quote = lb_icmp_quote(skb, pkt);
	struct lb_conntrack *entry;

	if (!quote)
		return LB_PASS;
	entry = lb_conntrack_lookup(&quote->peer);
	if (!entry || entry->hook != hook || !lb_conntrack_peer(&quote->peer, entry, &pkt->peer))
		return LB_PASS;
	if (lb_needs_fib_lookup(entry) && lb_fib_lookup(fib, skb, pkt, &entry->to.daddr))
		return LB_PASS;
	if (lb_icmp_rewrite(skb, pkt, quote, &entry->to, lb_next_ttl(pkt, fib)))
		return -LB_DROP_REWRITE;
	return lb_send(skb, pkt, entry->flags, entry->ifindex, fib);
}

/* Parses the packet. LB_NEXT: it is neither part of a known flow nor an error about one. */
static __always_inline int lb_known(struct __sk_buff *skb, struct lb_packet *pkt, int hook,
				    struct bpf_fib_lookup *fib, int l2)
{
	if (lb_fragment_parse(skb, pkt, l2))
		return lb_known_error(skb, pkt, hook, fib);
	return lb_known_flow(skb, pkt, hook, fib);
}

static __always_inline int lb_open_flow(struct __sk_buff *skb, struct lb_packet *pkt,
					const struct lb_tc_hook *at, struct lb_match *match,
					struct bpf_fib_lookup *fib)
{
	struct lb_choice choice = {};
	struct lb_flow flow = {};
	int verdict;

	if (!lb_has_transport(pkt) || (pkt->tuple.proto != IPPROTO_UDP && !lb_ct_is_syn(pkt)))
		return LB_PASS;
	lb_verifier_merge_states(pkt);
	verdict = lb_service_match(skb, pkt, match);
	if (verdict)
		return verdict;
	verdict = lb_service_select(pkt, match, at, &flow, &choice);
	if (verdict)
		return verdict;
	verdict = lb_service_route(skb, pkt, at, match, &choice, &flow, fib);
	if (verdict)
		return verdict;
	if (lb_flow_is_sampled())
		flow.flags |= LB_CT_SAMPLED;
	verdict = lb_conntrack_create(pkt, &flow);
	if (verdict)
		return verdict;
	lb_count_connection(match->index, choice.index);
	lb_count_first_packet(pkt, match->index, choice.index);
	lb_flow_record_start(pkt, &flow);
	lb_fragment_store(pkt);
	if (lb_rewrite(skb, pkt, &flow.to, lb_next_ttl(pkt, fib)))
		return -LB_DROP_REWRITE;
	return lb_send(skb, pkt, flow.flags, 0, fib);
}

static __always_inline int lb_new_flow(struct __sk_buff *skb, struct lb_packet *pkt,
				       const struct lb_tc_hook *at, struct bpf_fib_lookup *fib)
{
	struct lb_match match = {};
	int verdict = lb_open_flow(skb, pkt, at, &match, fib);

	if (verdict < 0)
		lb_flow_fail(pkt, &match, at->hook, verdict);
	return verdict;
}

/* Counts and answers a dropped packet. Pod devices come and go, so they count as one. */
static __always_inline int lb_tc_action(struct __sk_buff *skb, const struct lb_packet *pkt,
					int hook, int verdict, __u32 mtu)
{
	int is_pod = hook == LB_HOOK_POD_INGRESS || hook == LB_HOOK_POD_EGRESS;

	if (verdict == LB_REDIRECT)
		return TC_ACT_REDIRECT;
	if (verdict >= 0)
		return TC_ACT_UNSPEC;
	lb_count_drop_at(is_pod ? LB_DROP_AT_POD : skb->ifindex, -verdict);
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
	struct bpf_fib_lookup fib = {};
	struct lb_packet pkt;
	int verdict;

	if (!lb_filter_may_be_request(skb, l2, at->hook))
		return TC_ACT_UNSPEC;
	verdict = lb_known(skb, &pkt, at->hook, &fib, l2);
	if (!verdict)
		verdict = lb_new_flow(skb, &pkt, at, &fib);
	return lb_tc_exit(skb, &pkt, at->hook, verdict, fib.tot_len);
}

/* Packets that leave: replies of backends and, on a host device, the host's requests to a VIP. */
static __always_inline int lb_tc_reply(struct __sk_buff *skb, const struct lb_tc_hook *at, int l2)
{
	int is_own = at->is_local_source && skb->sk;
	struct bpf_fib_lookup fib = {};
	struct lb_packet pkt;
	int verdict;

	if (at->hook == LB_HOOK_HOST_EGRESS && lb_is_unused_vip(skb, l2, is_own)) {
		lb_count_drop_at(skb->ifindex, LB_DROP_UNUSED_ADDRESS);
		return TC_ACT_SHOT;
	}
	if (!(is_own && lb_filter_may_be_request(skb, l2, at->hook)) &&
	    !lb_filter_may_be_reply(skb, l2, at->hook))
		return TC_ACT_UNSPEC;
	verdict = lb_known(skb, &pkt, at->hook, &fib, l2);
	if (!verdict && is_own)
		verdict = lb_new_flow(skb, &pkt, at, &fib);
	return lb_tc_exit(skb, &pkt, at->hook, verdict, fib.tot_len);
}

#endif
