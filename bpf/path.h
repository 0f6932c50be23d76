/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The way of a packet through tc: known flow, else new flow, else not ours; and the one exit. */
#ifndef LB_PATH_H
#define LB_PATH_H

#include "conntrack.h"
#include "counters.h"
#include "ct_state.h"
#include "exit.h"
#include "filter.h"
#include "flow_record.h"
#include "forward.h"
#include "fragment.h"
#include "frontend.h"
#include "icmp_nat.h"
#include "rewrite.h"
#include "service.h"
#include "service_cidr.h"
#include "snat.h"
#include "verifier.h"

/* The rewritten packet, where it must leave. fib is filled when that is from here. */
static __always_inline int lb_send(struct __sk_buff *skb, const struct lb_packet *pkt, int flags,
				   __u32 ifindex, struct bpf_fib_lookup *fib)
{
	if (flags & LB_CT_HAIRPIN)
		return lb_return_to_sender(skb, pkt, LB_HOOK_POD_INGRESS);
	if (fib->ifindex)
		return lb_forward(skb, pkt, fib);
	if (ifindex && ifindex != skb->ifindex)
		return lb_forward_via_neigh(skb, pkt, ifindex);
	return LB_PASS;
}

/* Masqueraded packets leave straight from tc, both ways; the host's own only on their way out. */
static __always_inline int lb_leaves_from_tc(const struct lb_conntrack *entry)
{
	if (entry->flags & LB_CT_HAIRPIN)
		return 0;
	if (entry->flags & LB_CT_TO_HOST)
		return entry->direction == LB_DIR_ORIGINAL;
	return entry->flags & LB_CT_SNAT;
}

/* A flow lives only as a pair; the LRU may have taken one half before it was established. */
static __always_inline int lb_has_lost_reply(struct lb_packet *pkt,
					     const struct lb_conntrack *entry)
{
	if (entry->direction != LB_DIR_ORIGINAL || lb_ct_state(entry) & LB_CT_ESTABLISHED)
		return 0;
	if (pkt->tuple.proto != IPPROTO_UDP && !lb_ct_is_syn(pkt) && !(entry->flags & LB_CT_SNAT))
		return 0;
	return !lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);
}

/*
 * Whether the entry is for this packet at this hook. One that a SYN replaces goes at once: the new
 * connection may be none of ours. The reply of an ended flow stays, to keep its source port.
 */
static __always_inline int lb_conntrack_applies(struct lb_packet *pkt, struct lb_conntrack *entry,
						int hook)
{
	if (entry->hook != hook)
		return 0;
	if (lb_conntrack_is_current(pkt, entry) && !lb_has_lost_reply(pkt, entry))
		return 1;
	if (entry->direction != LB_DIR_ORIGINAL)
		return 0;
	lb_conntrack_replace(pkt, entry);
	return 0;
}

/* LB_NEXT: no entry for this packet at this hook. */
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
	if (lb_leaves_from_tc(entry)) {
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
 * An error about a packet of a known flow becomes what a packet of that flow would that goes the
 * same way. The flow stays as it is: errors are easily forged. None is answered, and one that does
 * not match in every respect passes.
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
	if (lb_leaves_from_tc(entry) && lb_fib_lookup(fib, skb, pkt, &entry->to.daddr))
		return LB_PASS;
	if (lb_icmp_rewrite(skb, pkt, quote, &entry->to, lb_next_ttl(pkt, fib)))
		return -LB_DROP_REWRITE;
	return lb_send(skb, pkt, entry->flags, entry->ifindex, fib);
}

/* Parses the packet. LB_NEXT: neither of a known flow nor an error about one. */
static __always_inline int lb_known(struct __sk_buff *skb, struct lb_packet *pkt, int hook,
				    struct bpf_fib_lookup *fib, int l2)
{
	if (lb_fragment_parse(skb, pkt, l2))
		return lb_known_error(skb, pkt, hook, fib);
	return lb_known_flow(skb, pkt, hook, fib);
}

static __always_inline int lb_service_route(struct __sk_buff *skb, const struct lb_packet *pkt,
					    const struct lb_tc_hook *place,
					    const struct lb_match *match,
					    const struct lb_choice *choice, struct lb_flow *flow,
					    struct bpf_fib_lookup *fib)
{
	if (place->hook == LB_HOOK_POD_INGRESS)
		return lb_service_from_pod(skb, pkt, match, choice, flow, fib);
	if (place->hook == LB_HOOK_HOST_INGRESS)
		return lb_service_from_outside(skb, pkt, match, choice, flow, fib);
	return lb_service_from_host(skb, pkt, choice, flow, fib);
}

static __always_inline int lb_open_flow(struct __sk_buff *skb, struct lb_packet *pkt,
					const struct lb_tc_hook *place, struct lb_match *match,
					struct bpf_fib_lookup *fib)
{
	struct lb_choice choice = {};
	struct lb_flow flow = {};
	int verdict;

	if (!lb_has_transport(pkt) || (pkt->tuple.proto != IPPROTO_UDP && !lb_ct_is_syn(pkt)))
		return LB_PASS;
	lb_verifier_forget(pkt);
	verdict = lb_service_match(skb, pkt, match);
	if (verdict)
		return verdict;
	verdict = lb_service_select(pkt, match, place, &flow, &choice);
	if (verdict)
		return verdict;
	verdict = lb_service_route(skb, pkt, place, match, &choice, &flow, fib);
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
				       const struct lb_tc_hook *place, struct bpf_fib_lookup *fib)
{
	struct lb_match match = {};
	int verdict = lb_open_flow(skb, pkt, place, &match, fib);

	if (verdict < 0)
		lb_flow_fail(pkt, &match, place->hook, verdict);
	return verdict;
}

/* Packets to one of our addresses: requests, and replies to what was masqueraded. */
static __always_inline int lb_tc_request(struct __sk_buff *skb, const struct lb_tc_hook *place,
					 int l2)
{
	struct bpf_fib_lookup fib = {};
	struct lb_packet pkt;
	int verdict;

	if (!lb_filter_may_be_request(skb, l2, place->hook))
		return TC_ACT_UNSPEC;
	verdict = lb_known(skb, &pkt, place->hook, &fib, l2);
	if (!verdict)
		verdict = lb_new_flow(skb, &pkt, place, &fib);
	return lb_tc_exit(skb, &pkt, place->hook, verdict, fib.tot_len);
}

/* What leaves: replies of backends; and, on a host device, what the host itself sends to a VIP. */
static __always_inline int lb_tc_reply(struct __sk_buff *skb, const struct lb_tc_hook *place,
				       int l2)
{
	int is_own = place->is_local_source && skb->sk;
	struct bpf_fib_lookup fib = {};
	struct lb_packet pkt;
	int verdict;

	if (place->hook == LB_HOOK_HOST_EGRESS && lb_is_unused_vip(skb, l2, is_own)) {
		lb_count_drop_at(skb->ifindex, LB_DROP_UNUSED_ADDRESS);
		return TC_ACT_SHOT;
	}
	if (!(is_own && lb_filter_may_be_request(skb, l2, place->hook)) &&
	    !lb_filter_may_be_reply(skb, l2, place->hook))
		return TC_ACT_UNSPEC;
	verdict = lb_known(skb, &pkt, place->hook, &fib, l2);
	if (!verdict && is_own)
		verdict = lb_new_flow(skb, &pkt, place, &fib);
	return lb_tc_exit(skb, &pkt, place->hook, verdict, fib.tot_len);
}

#endif
