/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* loadBalancerSourceRanges: whether a client may open a connection to a frontend. */
#ifndef LB_SOURCE_RANGE_H
#define LB_SOURCE_RANGE_H

#include "addr.h"
#include "maps.h"
#include "verdict.h"

/* LB_NEXT or the drop reason. client: the source address before SNAT. */
static __always_inline int lb_source_range_check(const struct lb_desc *desc,
						 const struct lb_addr *client)
{
	struct lb_source_range key = {
		.length = 8 * (sizeof(key) - sizeof(key.length)),
		.source_ranges = desc->source_ranges,
		.addr = *client,
	};

	if (!(desc->flags & LB_DESC_SOURCE_RANGES) || lb_src_ranges.lookup(&key))
		return LB_NEXT;
	return -LB_DROP_SOURCE_RANGE;
}

/*
 * For socket LB. A process of the host has the node's address; if that is not in the ranges, the
 * packet is left to tc, which sees its actual source address and drops it. The address of a pod
 * without tc cover is unknown, so its connections are refused.
 */
static __always_inline int lb_source_range_of_socket(const struct lb_desc *desc, __u32 netns_flags)
{
	struct lb_settings *settings;

	if (!(desc->flags & LB_DESC_SOURCE_RANGES))
		return LB_NEXT;
	if (!(netns_flags & LB_NETNS_HOST))
		return LB_HAS_SET_RETVAL ? -LB_DROP_SOURCE_RANGE : LB_PASS;
	settings = lb_settings_get();
	if (!settings)
		return LB_PASS;
	if (lb_addr_is_ipv4(&desc->frontend.addr))
		return lb_source_range_check(desc, &settings->node4) ? LB_PASS : LB_NEXT;
	return lb_source_range_check(desc, &settings->node6) ? LB_PASS : LB_NEXT;
}

#endif
