/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The clock of the programs. */
#ifndef LB_CLOCK_H
#define LB_CLOCK_H

#include "config.h"

#define LB_SECOND 1000000000ULL

/* CLOCK_MONOTONIC in ns; with the cheaper coarse clock (Linux 5.11) accurate to a tick. */
static __always_inline __u64 lb_now(void)
{
#if LB_HAS_COARSE_CLOCK
	return bpf_ktime_get_coarse_ns();
#else
	return bpf_ktime_get_ns();
#endif
}

#endif
