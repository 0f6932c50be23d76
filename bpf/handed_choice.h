/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The choice that XDP makes for a packet it then passes to tc, which repeats it. With a choice of
 * its own at tc, a backend of this node would need to be chosen twice, and round-robin would take two
 * turns. A number is as good as another, so nothing is lost when two packets share a place, or when
 * one never gets to tc.
 */
#ifndef LB_HANDED_CHOICE_H
#define LB_HANDED_CHOICE_H

#include "backend.h"
#include "filter.h"
#include "maps.h"

/* The upper half of an element says whose it is; the lower half is the number, which is never zero. */
static __always_inline __u64 lb_handed_tag(__u64 hash)
{
	return hash << 32;
}

static __always_inline __u64 *lb_handed_place(__u64 hash)
{
	int i = hash >> 48 & (LB_XDP_CHOICES - 1);

	return lb_xdp_choices.lookup(&i);
}

static __always_inline void lb_choice_hand_on(const struct lb_tuple *packet,
					      const struct lb_choice *choice)
{
	__u64 hash = lb_ends_hash(packet->saddr.word[3], packet->daddr.word[3], packet->sport,
				  packet->dport);
	__u64 *place = lb_handed_place(hash);

	if (place && choice->number)
		*(volatile __u64 *)place = lb_handed_tag(hash) | choice->number;
}

/* The number of an earlier choice for this packet, for struct lb_opening; 0 if there is none. */
static __always_inline __u32 lb_choice_take(const struct lb_tuple *packet)
{
	__u64 hash = lb_ends_hash(packet->saddr.word[3], packet->daddr.word[3], packet->sport,
				  packet->dport);
	__u64 *place = lb_handed_place(hash);
	__u64 value;

	if (!place)
		return 0;
	value = *(volatile __u64 *)place;
	if (!value || (value ^ lb_handed_tag(hash)) >> 32)
		return 0;
	*(volatile __u64 *)place = 0;
	return value;
}

#endif
