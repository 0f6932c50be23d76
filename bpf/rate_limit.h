/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A rate limit per second and CPU. */
#ifndef LB_RATE_LIMIT_H
#define LB_RATE_LIMIT_H

#include "clock.h"

/* done: this CPU's state; the upper half is the second, the lower half the number allowed in it. */
static __always_inline int lb_is_within_rate(__u64 *done, __u32 per_second)
{
	__u64 second = lb_now() / LB_SECOND << 32;

	if (!done)
		return 0;
	if (*done >> 32 != second >> 32)
		*done = second;
	if ((__u32)*done >= per_second)
		return 0;
	*done += 1;
	return 1;
}

#endif
