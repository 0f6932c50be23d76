/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The only place that tells of flows: records in lb_flows, and histograms of those that ended. What
 * is not told, because the buffer is full or the CPU has told enough in this second, is counted.
 */
#ifndef LB_FLOW_H
#define LB_FLOW_H

#include "clock.h"
#include "maps.h"
#include "rate_limit.h"
#include "types.h"

/* bcc 0.26 has it without a flag that lets the reader sleep on. */
#define LB_NO_WAKEUP 1

static __always_inline struct lb_settings *lb_flow_settings(void)
{
	int zero = 0;

	return lb_settings.lookup(&zero);
}

/* Whether the beginning and the end of a new flow are told of. */
static __always_inline int lb_flow_is_sampled(void)
{
	struct lb_settings *settings = lb_flow_settings();

	if (!settings || !settings->flow_sample)
		return 0;
	return !(bpf_get_prandom_u32() % settings->flow_sample);
}

static __always_inline void lb_flow_count_lost(int why)
{
	__u64 *lost = lb_flow_lost.lookup(&why);

	if (lost)
		__sync_fetch_and_add(lost, 1);
}

static __always_inline int lb_flow_is_due(__u32 rate)
{
	int zero = 0;

	return !rate || lb_is_within_rate(lb_flow_rate.lookup(&zero), rate);
}

/* NULL when nobody wants to know. What comes back is zero, and must go to lb_flow_record_submit(). */
static __always_inline struct lb_flow_record *lb_flow_record_reserve(int event, int path)
{
	struct lb_settings *settings = lb_flow_settings();
	struct lb_flow_record *record;

	if (!settings || !(settings->flow_events & 1 << event))
		return NULL;
	if (!lb_flow_is_due(settings->flow_rate)) {
		lb_flow_count_lost(LB_LOST_RATE);
		return NULL;
	}
	record = lb_flows.ringbuf_reserve(sizeof(*record));
	if (!record) {
		lb_flow_count_lost(LB_LOST_FULL);
		return NULL;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->version = LB_FLOW_RECORD_VERSION;
	record->event = event;
	record->path = path;
	record->time = lb_now();
	return record;
}

static __always_inline void lb_flow_record_set_backend(struct lb_flow_record *record, __u32 service,
						       __u32 backend, __u32 generation,
						       __u32 desc_flags)
{
	record->service = service;
	record->backend = backend;
	record->generation = generation;
	record->desc_flags = desc_flags;
}

static __always_inline void lb_flow_record_submit(struct lb_flow_record *record)
{
	lb_flows.ringbuf_submit(record, LB_NO_WAKEUP);
}

/* How many bits a number takes, at most the last bucket. */
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

/* Of a flow that was seen to end. duration: ns. */
static __always_inline void lb_histograms_add(int path, __u64 duration, __u64 bytes)
{
	lb_histogram_add(path, LB_HISTOGRAM_DURATION, duration / 1000);
	lb_histogram_add(path, LB_HISTOGRAM_BYTES, bytes);
}

#endif
