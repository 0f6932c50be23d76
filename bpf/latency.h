/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How long backends take to answer this node, for Services that are scheduled by it: a moving average
 * of handshakes at tc, and of the kernel's smoothed round trip times at the socket. What was measured
 * long ago counts less and less, so that a backend that was slow is tried again.
 */
#ifndef LB_LATENCY_H
#define LB_LATENCY_H

#include "clock.h"
#include "maps.h"

/* The unit of struct lb_latency.measured: 2^30 ns, about a second. */
#define LB_LATENCY_TICK 30

/* After so many ticks without a measurement the average is halved. */
#define LB_LATENCY_HALF 8

/* A measurement moves the average by 1/8 of the difference, the first one in a while by 1/2. */
#define LB_LATENCY_SHIFT 3

static __always_inline __u32 lb_latency_now(void)
{
	return lb_now() >> LB_LATENCY_TICK;
}

/* desc_flags: of the descriptor when the connection began. took: ns. */
static __always_inline void lb_latency_note(__u32 desc_flags, int index, __u32 serial, __u64 took)
{
	struct lb_latency *latency;
	struct lb_latency value;
	struct lb_backend *backend;
	__s64 difference;

	if (!(desc_flags & LB_DESC_TIMED))
		return;
	backend = lb_backends.lookup(&index);
	latency = lb_latencies.lookup(&index);
	if (!backend || backend->serial != serial || !latency)
		return;
	value.measured = lb_latency_now();
	difference = (__s64)(took / 1000) - latency->average;
	if (!latency->average)
		value.average = took / 1000 + 1;
	else if (value.measured == latency->measured)
		value.average = latency->average + (difference >> LB_LATENCY_SHIFT);
	else
		value.average = latency->average + (difference >> 1);
	*(volatile __u64 *)latency = *(__u64 *)&value;
}

/* In us, 0 if unknown. Another CPU may have measured it a moment after now. */
static __always_inline __u64 lb_latency_of(int backend)
{
	struct lb_latency *latency = lb_latencies.lookup(&backend);
	__s32 age;

	if (!latency)
		return 0;
	age = lb_latency_now() - latency->measured;
	if (age < 0)
		return latency->average;
	return age < 32 * LB_LATENCY_HALF ? latency->average >> age / LB_LATENCY_HALF : 0;
}

#endif
