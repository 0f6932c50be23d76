/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Only the first fragment has ports. A translated one leaves them for those behind it, which pass
 * untouched without. Each first fragment begins anew, because identifications are used again.
 */
#ifndef LB_FRAGMENT_H
#define LB_FRAGMENT_H

#include "conntrack.h"
#include "maps.h"
#include "parse.h"

/* As long as Linux waits for the other fragments (ipfrag_time). */
#define LB_FRAGMENT_TIMEOUT (30 * LB_SECOND)

/* Fills pkt->peer: the packet's tuple, with the identification in place of the ports. */
static __always_inline void lb_fragment_key(struct lb_packet *pkt)
{
	pkt->peer = pkt->tuple;
	__builtin_memcpy(&pkt->peer.sport, &pkt->id, sizeof(pkt->id));
}

static __always_inline int lb_fragment_lookup(struct lb_packet *pkt)
{
	struct lb_fragment *first;

	lb_fragment_key(pkt);
	first = lb_fragments.lookup(&pkt->peer);
	if (!first || (__s64)(lb_now() - first->created) > (__s64)LB_FRAGMENT_TIMEOUT)
		return LB_PASS;
	pkt->tuple.sport = first->sport;
	pkt->tuple.dport = first->dport;
	return LB_NEXT;
}

/* Before the packet is rewritten; pkt->peer is lost. */
static __always_inline void lb_fragment_store(struct lb_packet *pkt)
{
	struct lb_fragment first = {};

	if (pkt->fragment != LB_FRAGMENT_FIRST)
		return;
	first.created = lb_now();
	first.sport = pkt->tuple.sport;
	first.dport = pkt->tuple.dport;
	lb_fragment_key(pkt);
	lb_fragments.insert(&pkt->peer, &first);
}

/* lb_parse(), and the ports of a later fragment. */
static __always_inline int lb_fragment_parse(struct __sk_buff *skb, struct lb_packet *pkt, int l2)
{
	int verdict = lb_parse(skb, pkt, l2);

	if (verdict || !pkt->fragment)
		return verdict;
	if (pkt->fragment == LB_FRAGMENT_LATER)
		return lb_fragment_lookup(pkt);
	lb_fragment_key(pkt);
	lb_fragments.delete(&pkt->peer);
	return LB_NEXT;
}

#endif
