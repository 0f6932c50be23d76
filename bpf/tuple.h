/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* struct lb_tuple: compare and reverse. */
#ifndef LB_TUPLE_H
#define LB_TUPLE_H

#include "addr.h"
#include "types.h"

static __always_inline int lb_tuple_is_equal(const struct lb_tuple *a, const struct lb_tuple *b)
{
	return a->sport == b->sport && a->dport == b->dport && a->proto == b->proto &&
	       lb_addr_is_equal(&a->saddr, &b->saddr) && lb_addr_is_equal(&a->daddr, &b->daddr);
}

static __always_inline int lb_tuple_is_reverse(const struct lb_tuple *a, const struct lb_tuple *b)
{
	return a->sport == b->dport && a->dport == b->sport && a->proto == b->proto &&
	       lb_addr_is_equal(&a->saddr, &b->daddr) && lb_addr_is_equal(&a->daddr, &b->saddr);
}

static __always_inline void lb_tuple_reverse(struct lb_tuple *out, const struct lb_tuple *in)
{
	out->saddr = in->daddr;
	out->daddr = in->saddr;
	out->sport = in->dport;
	out->dport = in->sport;
	out->proto = in->proto;
	out->pad[0] = 0;
	out->pad[1] = 0;
	out->pad[2] = 0;
}

#endif
