/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How many connections a backend has from this node, for Services that are scheduled by it. Not
 * every end is seen here: an entry that is evicted or expires does not report it, and the agent
 * corrects the numbers.
 */
#ifndef LB_OPEN_CONNECTIONS_H
#define LB_OPEN_CONNECTIONS_H

#include "maps.h"

static __always_inline __s64 lb_open_of(int backend)
{
	__s64 *open = lb_open.lookup(&backend);

	return open ? *(volatile __s64 *)open : 0;
}

static __always_inline void lb_open_begin(__u32 desc_flags, int backend)
{
	__s64 *open;

	if (!(desc_flags & LB_DESC_COUNTS_OPEN))
		return;
	open = lb_open.lookup(&backend);
	if (open)
		__sync_fetch_and_add(open, 1);
}

/* desc_flags: of the descriptor when the connection began. */
static __always_inline void lb_open_end(__u32 desc_flags, int index, __u32 serial)
{
	struct lb_backend *backend;
	__s64 *open;

	if (!(desc_flags & LB_DESC_COUNTS_OPEN))
		return;
	backend = lb_backends.lookup(&index);
	if (!backend || backend->serial != serial)
		return;
	open = lb_open.lookup(&index);
	if (open)
		__sync_fetch_and_add(open, -1);
}

#endif
