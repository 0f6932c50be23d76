/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Histograms of ended flows: duration, bytes, round-trip time. */
#ifndef LB_HISTOGRAM_H
#define LB_HISTOGRAM_H

#include "maps.h"
#include "types.h"

/* The number of significant bits, limited to the last bucket. */
static __always_inline __u32 lb_bucket_of(__u64 value)
{
	__u64 bits = (value > 0xffffffff) << 5;
	__u64 step;

	value >>= bits;
	step = (value > 0xffff) << 4;
	value >>= step;
	bits += step;
	step = (value > 0xff) << 3;
	value >>= step;
	bits += step;
	step = (value > 0xf) << 2;
	value >>= step;
	bits += step;
	bits += value > 7 ? 4 : value > 3 ? 3 : value > 1 ? 2 : value;
	if (bits >= LB_BUCKETS)
		bits = LB_BUCKETS - 1;
	asm volatile("" : "+r"(bits));
	return bits;
}

static __always_inline void lb_histogram_add(int path, int kind, __u64 value)
{
	int index = LB_HISTOGRAM_KINDS * (path - 1) + kind;
	struct lb_histogram *histogram = lb_histograms.lookup(&index);
	__u32 bucket = lb_bucket_of(value);

	if (!histogram || bucket >= LB_BUCKETS)
		return;
	__sync_fetch_and_add(&histogram->buckets[bucket], 1);
	__sync_fetch_and_add(&histogram->sum, value);
}

/* For a flow that was seen to end. duration: ns. */
static __always_inline void lb_histograms_add(int path, __u64 duration, __u64 bytes)
{
	lb_histogram_add(path, LB_HISTOGRAM_DURATION, duration / 1000);
	lb_histogram_add(path, LB_HISTOGRAM_BYTES, bytes);
}

#endif
