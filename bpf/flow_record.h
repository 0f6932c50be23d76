/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Flow records: how flows start and end, and which are refused or dropped. The agent reads them
 * from lb_flows. Records that are lost, because the buffer is full or the CPU is over its rate, are
 * counted.
 */
#ifndef LB_FLOW_RECORD_H
#define LB_FLOW_RECORD_H

#include "clock.h"
#include "conntrack.h"
#include "counters.h"
#include "ejection.h"
#include "frontend.h"
#include "histogram.h"
#include "limits.h"
#include "maps.h"
#include "open_connections.h"
#include "packet.h"
#include "rate_limit.h"
#include "tuple.h"

/* bcc 0.26 does not define the flag that does not wake the reader. */
#define LB_NO_WAKEUP 1

/* Whether a new flow gets START and END records. */
static __always_inline int lb_flow_is_sampled(void)
{
	struct lb_settings *settings = lb_settings_get();

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

static __always_inline int lb_flow_record_is_within_rate(__u32 rate)
{
	return !rate || lb_is_within_rate(LB_SCRATCH(flow_rate), rate);
}

/*
 * NULL if no record is wanted or possible. hook: 0 at the socket. The rest is zero, and the record must
 * go to lb_flow_record_submit().
 */
static __always_inline struct lb_flow_record *lb_flow_record_reserve(int event, __u8 proto,
								     int hook)
{
	struct lb_settings *settings = lb_settings_get();
	struct lb_flow_record *record;

	if (!settings || !(settings->flow_events & 1 << event))
		return NULL;
	if (!lb_flow_record_is_within_rate(settings->flow_rate)) {
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
	record->path = hook ? LB_PATH_TC : LB_PATH_SOCKET;
	record->time = lb_now();
	record->hook = hook;
	record->proto = proto;
	record->source = hook == LB_HOOK_HOST_INGRESS ? LB_FROM_ELSEWHERE : LB_FROM_THIS_NODE;
	return record;
}

/* key: in the original direction. */
static __always_inline void lb_flow_record_set_ends(struct lb_flow_record *record,
						    const struct lb_tuple *key)
{
	record->client = key->saddr;
	record->client_port = key->sport;
	record->frontend = key->daddr;
	record->frontend_port = key->dport;
}

static __always_inline void lb_flow_record_set_backend(struct lb_flow_record *record, __u32 service,
						       __u32 backend, __u32 serial,
						       __u32 desc_flags)
{
	record->service = service;
	record->backend = backend;
	record->serial = serial;
	record->desc_flags = desc_flags;
}

static __always_inline void lb_flow_record_submit(struct lb_flow_record *record)
{
	lb_flows.ringbuf_submit(record, LB_NO_WAKEUP);
}

/* At tc; key: in the original direction. reply, end: of a flow that has ended, else NULL and 0. */
static __always_inline void lb_flow_record(int event, const struct lb_tuple *key,
					   const struct lb_conntrack *original,
					   const struct lb_conntrack *reply, int end)
{
	struct lb_flow_record *record;

	if (!(original->flags & LB_CT_SAMPLED))
		return;
	record = lb_flow_record_reserve(event, key->proto, original->hook);
	if (!record)
		return;
	lb_flow_record_set_ends(record, key);
	record->end = end;
	record->started = reply ? original->created : record->time;
	record->backend_addr = original->to.daddr;
	record->backend_port = original->to.dport;
	record->flow_flags = original->flags;
	lb_flow_record_set_backend(record, original->service, original->backend, original->serial,
				   original->desc_flags);
	if (reply) {
		record->original.packets = original->packets;
		record->original.bytes = original->bytes;
		record->reply.packets = reply->packets;
		record->reply.bytes = reply->bytes;
	}
	lb_flow_record_submit(record);
}

/*
 * Marks a flow as ended, once, and only while it has both entries. lb_flow_end_report() writes the
 * record when the packet is finished: here the verifier would explore that code many times.
 */
static __always_inline void lb_flow_end(struct lb_packet *pkt, struct lb_conntrack *entry,
					struct lb_conntrack *other, int end)
{
	struct lb_ended_flow *ending = LB_SCRATCH(ending);

	if (!ending || (lb_ct_state(entry) | lb_ct_state(other)) & LB_CT_ENDED)
		return;
	entry->state |= LB_CT_ENDED;
	other->other_state |= LB_CT_ENDED;
	ending->entries[0] = *entry;
	ending->entries[1] = *other;
	ending->key = pkt->tuple;
	ending->end = end;
}

/* Another packet ended the flow at the same time, and reports it. */
static __always_inline void lb_flow_end_cancel(void)
{
	struct lb_ended_flow *ending = LB_SCRATCH(ending);

	if (ending)
		ending->end = 0;
}

static __always_inline void lb_flow_count_failed(const struct lb_conntrack *original,
						 const struct lb_addr *addr, __u64 retried)
{
	struct lb_client_key client;

	lb_count_failed(original->frontend, original->service, original->backend, original->serial,
			retried);
	if (original->flags & LB_CT_UNANSWERED)
		return;
	lb_conntrack_client(original, addr, &client);
	lb_ejection_note_failure(original->backend, original->serial, &client);
}

/*
 * A flow is no longer open. original: its entry; client: the address before SNAT. What arrived in a tunnel
 * was never counted here (flow_begin.h).
 */
static __always_inline void lb_flow_note_end(const struct lb_conntrack *original,
					     const struct lb_addr *client)
{
	if (LB_HAS_DSR && original->flags & LB_CT_TUNNELED)
		return;
	lb_open_end(original->desc_flags, original->backend, original->serial);
	lb_limit_end(original, client);
}

/* Counts and records the flow that this packet ended, if any. */
static __always_inline void lb_flow_end_report(void)
{
	struct lb_conntrack *original, *reply;
	struct lb_ended_flow *ending = LB_SCRATCH(ending);

	if (!ending || !ending->end)
		return;
	original = &ending->entries[0];
	reply = &ending->entries[1];
	if (original->direction == LB_DIR_REPLY) {
		original = reply;
		reply = &ending->entries[0];
		lb_tuple_reverse(&ending->key, &reply->to);
	}
	/* Without a branch for each, or the verifier would explore twice what follows. */
	if ((ending->end | (LB_END_BACKEND_REFUSED ^ LB_END_RETRIED)) == LB_END_RETRIED)
		lb_flow_count_failed(original, &ending->key.saddr, ending->end / LB_END_RETRIED);
	else if (ending->end == LB_END_CLOSED || ending->end == LB_END_RESET)
		lb_histograms_add(LB_PATH_TC, lb_now() - original->created,
				  original->bytes + reply->bytes);
	lb_flow_note_end(original, &ending->key.saddr);
	lb_flow_record(LB_FLOW_END, &ending->key, original, reply, ending->end);
	ending->end = 0;
}

/* Like lb_flow_record_reserve(), for a flow that is refused or dropped. reason: -verdict. */
static __always_inline struct lb_flow_record *
lb_flow_record_failure(__u8 proto, const struct lb_desc *desc, int hook, int reason)
{
	int is_refused = lb_is_refusal(reason) ||
			 (reason == LB_DROP_UNKNOWN_CONNECTION && proto == IPPROTO_TCP);
	int event = is_refused ? LB_FLOW_REFUSED : LB_FLOW_DROPPED;
	struct lb_flow_record *record = lb_flow_record_reserve(event, proto, hook);

	if (!record)
		return NULL;
	record->reason = lb_reason_of(-reason);
	if (desc) {
		record->service = desc->service;
		record->desc_flags = desc->flags;
	}
	return record;
}

/*
 * A packet that is too big or whose TTL has expired is not a failure of its flow, nor is the reset of
 * an unknown one. No new connection fails with an unknown one or at an unknown port.
 */
static __always_inline void lb_flow_fail(const struct lb_packet *pkt, const struct lb_match *match,
					 int hook, int verdict)
{
	int is_unknown = verdict == -LB_DROP_UNKNOWN_CONNECTION;
	struct lb_flow_record *record;

	if (verdict == -LB_DROP_TOO_BIG || verdict == -LB_DROP_TTL_EXCEEDED ||
	    (is_unknown && pkt->tcp_flags & LB_TCP_RST))
		return;
	if (match->desc && verdict != -LB_DROP_UNKNOWN_PORT && verdict != -LB_DROP_UNSERVED_PORT &&
	    !is_unknown)
		lb_count_failure(match->index, verdict);
	record = lb_flow_record_failure(pkt->tuple.proto, match->desc, hook, -verdict);
	if (!record)
		return;
	lb_flow_record_set_ends(record, &pkt->tuple);
	lb_flow_record_submit(record);
}

#endif
