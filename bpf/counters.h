/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The only places that count. Atomic although per CPU: cgroup hooks can be preempted and
 * interrupted by a hook on the same CPU.
 */
#ifndef LB_COUNTERS_H
#define LB_COUNTERS_H

#include "maps.h"
#include "types.h"

static __always_inline void lb_count_drop_reason(int reason)
{
	__u64 *count = lb_count_drop.lookup(&reason);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline void lb_count_connection(int frontend, int backend)
{
	struct lb_counts *counts = lb_count_front.lookup(&frontend);

	if (counts)
		__sync_fetch_and_add(&counts->connections, 1);
	counts = lb_count_back.lookup(&backend);
	if (counts)
		__sync_fetch_and_add(&counts->connections, 1);
}

/* verdict: -LB_DROP_NO_ENDPOINT is refused, any other is dropped. */
static __always_inline void lb_count_failure(int frontend, int verdict)
{
	struct lb_counts *counts = lb_count_front.lookup(&frontend);

	if (!counts)
		return;
	if (verdict == -LB_DROP_NO_ENDPOINT)
		__sync_fetch_and_add(&counts->refused, 1);
	else
		__sync_fetch_and_add(&counts->dropped, 1);
}

#endif
