/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Packets of a known flow: which entry applies, and what path.h needs from it. UDP has tables of
 * its own (conntrack.h).
 */
#ifndef LB_KNOWN_FLOW_H
#define LB_KNOWN_FLOW_H

#include "conntrack.h"
#include "ct_match.h"
#include "ct_state.h"
#include "dsr.h"
#include "maps.h"
#include "masquerade.h"
#include "packet.h"
#include "retry.h"

/* Masqueraded flows are routed at tc in both directions, flows of the host only as they leave. */
static __always_inline int lb_needs_fib_lookup(const struct lb_known_flow *known)
{
	if (known->flags & LB_CT_HAIRPIN)
		return 0;
	if (known->flags & LB_CT_TO_HOST)
		return known->direction == LB_DIR_ORIGINAL;
	return known->flags & LB_CT_SNAT;
}

/* The TTL that a packet of a known flow leaves with. Without a route here, the stack forwards. */
static __always_inline __u8 lb_known_ttl(const struct lb_packet *pkt,
					 const struct lb_known_flow *known)
{
	int is_routed = lb_needs_fib_lookup(known) && !(pkt->routing & LB_VIA_STACK);

	return is_routed ? pkt->ttl - 1 : pkt->ttl;
}

static __always_inline void lb_known_fill(struct lb_known_flow *known,
					  const struct lb_conntrack *entry)
{
	known->to = entry->to;
	known->flags = entry->flags;
	known->ifindex = entry->ifindex;
	known->direction = entry->direction;
	known->is_refusal = 0;
}

/*
 * LB_NEXT: no entry applies. LB_REDIRECT: known is filled, and the packet is counted. No entry is
 * used afterwards, or the verifier would explore what follows once per table.
 */
static __always_inline int lb_known_entry(struct lb_packet *pkt, int hook,
					  struct lb_known_flow *known, int is_udp)
{
	struct lb_conntrack *entry, *one_way;
	int verdict = lb_conntrack_find(pkt, hook, &entry, &one_way, is_udp, 0);

	if (LB_HAS_DSR && one_way) {
		lb_known_fill(known, one_way);
		lb_dsr_go_on(pkt, one_way, is_udp);
		return LB_REDIRECT;
	}
	if (verdict || !entry)
		return verdict;
	lb_known_fill(known, entry);
	known->is_refusal = !is_udp && lb_retry_is_refusal(pkt, entry);
	if (LB_HAS_DSR && hook == LB_HOOK_HOST_INGRESS && entry->flags & LB_CT_DSR)
		lb_dsr_track(pkt, entry, is_udp);
	else
		lb_conntrack_track(pkt, entry, is_udp);
	return LB_REDIRECT;
}

/* Like lb_known_entry(), for any protocol. */
static __always_inline int lb_known_find(struct lb_packet *pkt, int hook,
					 struct lb_known_flow *known)
{
	return pkt->tuple.proto == IPPROTO_UDP ? lb_known_entry(pkt, hook, known, 1) :
						 lb_known_entry(pkt, hook, known, 0);
}

/* See lb_masquerade_follow_route(). */
static __always_inline void lb_known_follow_route(struct lb_packet *pkt,
						  const struct lb_known_flow *known, __u32 ifindex)
{
	if (known->direction != LB_DIR_ORIGINAL || known->flags & LB_CT_TO_POD ||
	    lb_is_host_device(ifindex))
		return;
	if (pkt->tuple.proto == IPPROTO_UDP)
		lb_masquerade_follow_route(pkt, 1);
	else
		lb_masquerade_follow_route(pkt, 0);
}

/* Fills known from the entry of the packet that an error quotes, if the flow has both entries. */
static __always_inline int lb_known_quoted(struct lb_packet *pkt, struct lb_packet *quote, int hook,
					   struct lb_known_flow *known, int is_udp)
{
	struct lb_conntrack *entry = lb_conntrack_lookup(&quote->reverse, is_udp);
	struct lb_conntrack *other;

	if (!entry)
		entry = lb_conntrack_lookup_dsr(&quote->reverse, hook);
	if (!entry || entry->hook != hook)
		return LB_PASS;
	lb_known_fill(known, entry);
	if (LB_HAS_DSR && entry->flags & LB_CT_DSR)
		return LB_REDIRECT;
	other = lb_conntrack_other(&quote->reverse, entry, &pkt->reverse, is_udp);
	if (!other)
		return LB_PASS;
	return !is_udp && lb_retry_hides_error(pkt, quote, entry, other) ? LB_HIDE : LB_REDIRECT;
}

#endif
