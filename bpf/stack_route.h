/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Masqueraded packets that the stack routes, so that they pass netfilter's FORWARD and can be
 * fragmented. The stack drops arriving packets with a local source. So only the destination changes
 * when a packet arrives, and the source when it leaves; in between it goes from the client to the
 * backend, or back, with the masquerade's port on the client's side, which makes it unique.
 *
 * lb_stack_nat has what a packet becomes when it leaves. Its elements are derived from the flow's
 * entries and recreated whenever a packet arrives, so they may be evicted.
 */
#ifndef LB_STACK_ROUTE_H
#define LB_STACK_ROUTE_H

#include "clock.h"
#include "conntrack.h"
#include "filter.h"
#include "forward.h"
#include "fragment.h"
#include "icmp_nat.h"
#include "maps.h"
#include "packet.h"
#include "rewrite.h"
#include "tuple.h"
#include "verdict.h"

/*
 * kube-proxy's mark for packets that it masquerades. Software that masquerades everything from
 * outside to pods skips packets with it (flannel), and no CNI uses the bit for itself.
 */
#define LB_STACK_MARK 0x4000

static __always_inline void lb_stack_mark(struct __sk_buff *skb)
{
	if (!lb_has_setting(LB_SETTING_BESIDE))
		skb->mark |= LB_STACK_MARK;
}

/* A packet leaves at once, or after the stack has waited for its fragments (ipfrag_time). */
#define LB_STACK_TIMEOUT (30 * LB_SECOND)

/* A packet of a masqueraded flow: later fragments follow the first one. */
static __always_inline int lb_stack_is_wanted(const struct lb_packet *pkt)
{
	return pkt->routing & LB_VIA_STACK ||
	       (lb_has_transport(pkt) && lb_has_setting(LB_SETTING_VIA_STACK));
}

/*
 * lb_fib_lookup() for a known flow. A reply leaves through the device of its request if the route
 * from its new source address leads there (see lb_fib_lookup_reply()), otherwise by the backend's
 * route, as the stack would send it.
 */
static __always_inline int lb_fib_lookup_known(struct bpf_fib_lookup *fib, void *ctx,
					       const struct lb_packet *pkt,
					       const struct lb_known_flow *known)
{
	int verdict;

	if (known->direction == LB_DIR_REPLY && known->ifindex && pkt->ttl > 1) {
		verdict = lb_fib_lookup_reply(fib, ctx, pkt, &known->to, known->ifindex);
		if (verdict || fib->ifindex)
			return verdict;
	}
	return lb_fib_lookup(fib, ctx, pkt, &known->to);
}

/* The same, unless the stack routes the packet: pkt->routing then has LB_VIA_STACK. */
static __always_inline int lb_stack_or_fib(struct bpf_fib_lookup *fib, void *ctx,
					   struct lb_packet *pkt, const struct lb_known_flow *known)
{
	int verdict = LB_NEXT;

	if (!(known->flags & LB_CT_SNAT))
		return lb_fib_lookup_known(fib, ctx, pkt, known);
	if (!lb_stack_is_wanted(pkt)) {
		verdict = lb_fib_lookup_known(fib, ctx, pkt, known);
		if (verdict != -LB_DROP_TOO_BIG || !(pkt->routing & LB_MAY_FRAGMENT))
			return verdict;
		fib->ifindex = 0;
	}
	pkt->routing |= LB_VIA_STACK;
	return LB_NEXT;
}

/* The packet between the two hooks. key: as it arrives; to: what the flow's entry makes of it. */
static __always_inline void lb_stack_between(struct lb_tuple *between, const struct lb_tuple *key,
					     const struct lb_tuple *to, int direction)
{
	*between = *key;
	between->daddr = to->daddr;
	if (direction == LB_DIR_REPLY)
		return;
	between->sport = to->sport;
	between->dport = to->dport;
}

/* Packets to and from the backend then pass the early filter of the hooks where they leave. */
static __always_inline void lb_stack_filter_add(const struct lb_tuple *reply)
{
	int index = lb_filter_index(reply->saddr.word[3], reply->sport);
	struct lb_reply_ends *ends = lb_reply_filter.lookup(&index);

	if (!ends)
		return;
	ends->hooks[LB_HOOK_HOST_EGRESS] = 1;
	ends->hooks[LB_HOOK_POD_EGRESS] = 1;
	ends->hooks[LB_FILTER_REQUEST] = 1;
}

/* Both directions are made together: an ICMP error may answer before any reply. */
static __always_inline void lb_stack_nat_add(struct lb_stack_scratch *scratch,
					     const struct lb_tuple *key, const struct lb_tuple *to,
					     int direction)
{
	scratch->nat.to = *to;
	lb_stack_nat.update(&scratch->between, &scratch->nat);
	lb_tuple_reverse(&scratch->nat.to, key);
	lb_stack_nat.update(&scratch->reverse, &scratch->nat);
	lb_stack_filter_add(direction == LB_DIR_REPLY ? &scratch->between : &scratch->reverse);
}

/*
 * pkt->to: what the flow's entry makes of a packet in this direction; replaced by what the packet
 * is until it leaves. key: the packet's.
 */
static __always_inline void lb_stack_enter(struct lb_packet *pkt, const struct lb_tuple *key,
					   int direction)
{
	struct lb_stack_scratch *scratch = LB_SCRATCH(stack);
	struct lb_stack_nat *nat;

	if (!scratch)
		return;
	lb_stack_between(&scratch->between, key, &pkt->to, direction);
	scratch->nat.last_seen = pkt->now;
	lb_tuple_reverse(&scratch->reverse, &scratch->between);
	lb_flow_filter_add(&scratch->between, scratch->nat.last_seen);
	lb_flow_filter_add(&scratch->reverse, scratch->nat.last_seen);
	nat = lb_stack_nat.lookup(&scratch->between);
	if (nat && lb_tuple_is_equal(&nat->to, &pkt->to))
		nat->last_seen = scratch->nat.last_seen;
	else
		lb_stack_nat_add(scratch, key, &pkt->to, direction);
	pkt->to = scratch->between;
}

/* What a packet becomes when it leaves; NULL if it did not arrive here for a masqueraded flow. */
static __always_inline struct lb_tuple *lb_stack_leave(struct lb_packet *pkt)
{
	struct lb_stack_nat *nat = lb_stack_nat.lookup(&pkt->tuple);

	if (!nat || (__s64)(pkt->now - nat->last_seen) > (__s64)LB_STACK_TIMEOUT)
		return NULL;
	return &nat->to;
}

/* A packet that the stack has routed: its source changes now. LB_NEXT: it is not one. */
static __always_inline int lb_routed(struct __sk_buff *skb, struct lb_packet *pkt)
{
	struct lb_tuple *to = lb_stack_leave(pkt);

	if (!to)
		return LB_NEXT;
	skb->mark &= ~LB_STACK_MARK;
	lb_fragment_store(pkt);
	return lb_rewrite(skb, pkt, to, pkt->ttl) ? -LB_DROP_REWRITE : LB_PASS;
}

/* An error about such a packet: from the stack itself, or routed by it. */
static __always_inline int lb_routed_error(struct __sk_buff *skb, struct lb_packet *pkt,
					   struct lb_packet *quote, int hook)
{
	struct lb_stack_nat *nat;

	if (hook != LB_HOOK_HOST_EGRESS && hook != LB_HOOK_POD_EGRESS)
		return LB_PASS;
	nat = lb_stack_nat.lookup(&quote->reverse);
	if (!nat)
		return LB_PASS;
	pkt->to = nat->to;
	return lb_icmp_rewrite(skb, pkt, quote, pkt->ttl) ? -LB_DROP_REWRITE : LB_PASS;
}

#endif
