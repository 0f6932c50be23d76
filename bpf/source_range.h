/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* loadBalancerSourceRanges: whether a client may open a connection to a frontend. */
#ifndef LB_SOURCE_RANGE_H
#define LB_SOURCE_RANGE_H

#include "addr.h"
#include "maps.h"
#include "verdict.h"

/* LB_NEXT or the reason; client: the source address before anything is rewritten. */
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
 * At the socket. A process of the host has the node's address; one that may not is left to tc,
 * which sees the real address and sends nothing back. The address of a pod without tc cover is not
 * known, so it may not.
 */
static __always_inline int lb_source_range_of_socket(const struct lb_desc *desc, __u32 netns_flags)
{
	struct lb_settings *settings;
	int zero = 0;

	if (!(desc->flags & LB_DESC_SOURCE_RANGES))
		return LB_NEXT;
	if (!(netns_flags & LB_NETNS_HOST))
		return LB_HAS_SET_RETVAL ? -LB_DROP_SOURCE_RANGE : LB_PASS;
	settings = lb_settings.lookup(&zero);
	if (!settings)
		return LB_PASS;
	if (lb_addr_is_ipv4(&desc->frontend.addr))
		return lb_source_range_check(desc, &settings->node4) ? LB_PASS : LB_NEXT;
	return lb_source_range_check(desc, &settings->node6) ? LB_PASS : LB_NEXT;
}

#endif
