/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Backends: which one a new connection gets, and whether an earlier choice is still valid. */
#ifndef LB_BACKEND_H
#define LB_BACKEND_H

#include "maps.h"
#include "verdict.h"

struct lb_choice {
	struct lb_backend *backend;
	__u32 index;
};

/* Uniformly random, like kube-proxy (iptables: statistic mode random, nftables: numgen random). */
static __always_inline int lb_backend_select(const struct lb_range *range, struct lb_choice *choice)
{
	__u32 *slot;
	int i;

	if (!range->count)
		return range->if_empty == LB_EMPTY_DROP ? -LB_DROP_NO_LOCAL_ENDPOINT :
							  -LB_DROP_NO_ENDPOINT;
	i = range->base + bpf_get_prandom_u32() % range->count;
	slot = lb_slots.lookup(&i);
	if (!slot)
		return -LB_DROP_NO_ENDPOINT;
	i = *slot;
	choice->index = i;
	choice->backend = lb_backends.lookup(&i);
	return choice->backend ? LB_NEXT : -LB_DROP_NO_ENDPOINT;
}

/*
 * A backend that was chosen earlier, if it has one of the flags. generation: the backend's
 * generation at that time; the index may belong to another backend by now.
 */
static __always_inline struct lb_backend *lb_backend_recall(__u32 index, __u32 generation,
							    __u32 flags)
{
	int i = index;
	struct lb_backend *backend = lb_backends.lookup(&i);

	if (!backend || backend->generation != generation)
		return NULL;
	return backend->flags & flags ? backend : NULL;
}

/* For new connections to an earlier choice. */
static __always_inline struct lb_backend *lb_backend_usable(__u32 index, __u32 generation)
{
	return lb_backend_recall(index, generation, LB_BACKEND_USABLE);
}

/*
 * For UDP flows, which stay with a backend that serves: traffic policies, topology hints and
 * readiness apply to new flows only.
 */
static __always_inline struct lb_backend *lb_backend_serving(__u32 index, __u32 generation)
{
	return lb_backend_recall(index, generation, LB_BACKEND_USABLE | LB_BACKEND_SERVING);
}

#endif
