/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Ejection: endpoints that fail are left out. The programs count failures, and let a single
 * connection through to a backend on trial; the agent reads the counts and decides. Nothing is
 * atomic: of two simultaneous failures one may not count, and two simultaneous connections may both
 * reach a backend on trial.
 */
#ifndef LB_EJECTION_H
#define LB_EJECTION_H

#include "clock.h"
#include "maps.h"

/* A SYN without an answer for this long is a failure: a little less than a client waits. */
#define LB_ANSWER_TIME (LB_SECOND - LB_SECOND / 8)

/* NULL if the backend is not watched, or the index no longer belongs to the flow's backend. */
static __always_inline struct lb_failures *lb_failures_of(int index, __u32 generation)
{
	struct lb_backend *backend = lb_backends.lookup(&index);

	if (!backend || backend->generation != generation || !(backend->flags & LB_BACKEND_WATCHED))
		return NULL;
	return lb_failures.lookup(&index);
}

/* The backend has accepted a connection. */
static __always_inline void lb_ejection_note_success(int backend, __u32 generation)
{
	struct lb_failures *failures = lb_failures_of(backend, generation);

	if (failures && failures->in_a_row)
		failures->in_a_row = 0;
}

/* The backend has refused a connection, or has not answered for a second. */
static __always_inline void lb_ejection_note_failure(int backend, __u32 generation)
{
	struct lb_failures *failures = lb_failures_of(backend, generation);

	if (failures)
		failures->in_a_row++;
}

/* Whether a backend on trial may get a new connection: the first, and all after it succeeded. */
static __always_inline int lb_trial_admits(int backend)
{
	struct lb_failures *failures = lb_failures.lookup(&backend);

	if (!failures || !failures->in_a_row)
		return 1;
	if (failures->is_tried)
		return 0;
	failures->is_tried = 1;
	return 1;
}

/* The connection for which a backend was chosen is not made after all. */
static __always_inline void lb_trial_take_back(int backend)
{
	struct lb_failures *failures = lb_failures.lookup(&backend);

	if (failures)
		failures->is_tried = 0;
}

#endif
