/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Most packets that leave are no replies of ours. A byte for each hash of (source address, port)
 * says so without looking through the flows. Set when a flow begins, never cleared: one that is set
 * in vain costs a look.
 */
#ifndef LB_FILTER_H
#define LB_FILTER_H

#include "maps.h"

static __always_inline int lb_filter_index(const struct lb_tuple *tuple)
{
	__u32 hash = tuple->saddr.word[0];

	hash = hash * 31 + tuple->saddr.word[1];
	hash = hash * 31 + tuple->saddr.word[2];
	hash = hash * 31 + tuple->saddr.word[3];
	hash = (hash + tuple->sport) * 0x9e3779b1;
	return hash >> (32 - LB_REPLY_FILTER_BITS);
}

static __always_inline void lb_filter_add(const struct lb_tuple *reply)
{
	int index = lb_filter_index(reply);
	__u8 *is_set = lb_reply_filter.lookup(&index);

	if (is_set)
		*is_set = 1;
}

static __always_inline int lb_filter_may_be_reply(const struct lb_tuple *tuple)
{
	int index = lb_filter_index(tuple);
	__u8 *is_set = lb_reply_filter.lookup(&index);

	return is_set && *is_set;
}

#endif
