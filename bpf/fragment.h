/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fragments: only the first one has ports. If it is translated, it stores them for the later
 * fragments, which otherwise pass untouched. A new first fragment deletes them, because
 * identifications are reused.
 */
#ifndef LB_FRAGMENT_H
#define LB_FRAGMENT_H

#include "clock.h"
#include "maps.h"
#include "packet.h"
#include "parse.h"

/* As long as Linux waits for missing fragments (ipfrag_time). */
#define LB_FRAGMENT_TIMEOUT (30 * LB_SECOND)

/* Fills pkt->datagram: the packet's tuple, with the identification in place of the ports. */
static __always_inline void lb_fragment_key(struct lb_packet *pkt)
{
	pkt->datagram = pkt->tuple;
	__builtin_memcpy(&pkt->datagram.sport, &pkt->id, sizeof(pkt->id));
}

static __always_inline int lb_fragment_lookup(struct lb_packet *pkt)
{
	struct lb_fragment *first;

	lb_fragment_key(pkt);
	first = lb_fragments.lookup(&pkt->datagram);
	if (!first || (__s64)(pkt->now - first->created) > (__s64)LB_FRAGMENT_TIMEOUT)
		return LB_PASS;
	pkt->tuple.sport = first->sport;
	pkt->tuple.dport = first->dport;
	if (first->via_stack)
		pkt->routing |= LB_VIA_STACK;
	return LB_NEXT;
}

/* Call it before the packet is rewritten. Overwrites pkt->datagram. */
static __always_inline void lb_fragment_store(struct lb_packet *pkt)
{
	struct lb_fragment first = {};

	if (pkt->fragment != LB_FRAGMENT_FIRST)
		return;
	first.created = pkt->now;
	first.sport = pkt->tuple.sport;
	first.dport = pkt->tuple.dport;
	first.via_stack = !!(pkt->routing & LB_VIA_STACK);
	lb_fragment_key(pkt);
	lb_fragments.insert(&pkt->datagram, &first);
}

/* lb_parse(), with the ports of a later fragment filled in. */
static __always_inline int lb_fragment_parse(struct __sk_buff *skb, struct lb_packet *pkt, int l2)
{
	int verdict = lb_parse(skb, pkt, l2);

	if (verdict || !pkt->fragment)
		return verdict;
	if (pkt->fragment == LB_FRAGMENT_LATER)
		return lb_fragment_lookup(pkt);
	lb_fragment_key(pkt);
	lb_fragments.delete(&pkt->datagram);
	return LB_NEXT;
}

#endif
