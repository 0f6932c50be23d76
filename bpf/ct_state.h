/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flow state: how packets change it and move entries from one table to another. */
#ifndef LB_CT_STATE_H
#define LB_CT_STATE_H

#include "conntrack.h"
#include "counters.h"
#include "ct_establish.h"
#include "ct_sequence.h"
#include "ejection.h"
#include "filter.h"
#include "latency.h"
#include "flow_record.h"
#include "maps.h"
#include "packet.h"

/*
 * Moves an entry back to lb_conntrack, not closed. It is marked, because the agent may miss it.
 * Returns 0, an error or LB_MOVED.
 */
static __always_inline int lb_conntrack_reopen(struct lb_tuple *key,
					       const struct lb_conntrack *entry, __u64 now)
{
	struct lb_conntrack *open = lb_conntrack_copy(entry);

	if (!open)
		return -1;
	if (!lb_conntrack_is_opening(key, entry, 0))
		return LB_MOVED;
	open->state = (open->state | LB_CT_ESTABLISHED) & ~LB_CT_CLOSED;
	open->other_state &= ~LB_CT_CLOSED;
	if (open->direction == LB_DIR_REPLY)
		lb_flow_filter_add(key, now);
	return lb_conntrack.update(key, open);
}

/*
 * Reverts a reset if both sides have continued since: a side that sends or accepts a reset
 * sends nothing but resets afterwards. The flow's END was recorded, and is not recorded again.
 */
static __always_inline void lb_conntrack_take_back(struct lb_packet *pkt,
						   const struct lb_conntrack *entry)
{
	struct lb_conntrack *reply = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);
	__u8 has_gone_on = LB_CT_SYN | LB_CT_ACK;
	int error;

	if (!reply || (reply->state & has_gone_on) != has_gone_on ||
	    lb_ct_state(entry) & lb_ct_state(reply) & LB_CT_OTHER_FIN)
		return;
	if (lb_conntrack_reopen(&pkt->reverse, reply, pkt->now))
		return;
	error = lb_conntrack_reopen(&pkt->tuple, entry, pkt->now);
	if (error < 0)
		lb_conntrack.delete(&pkt->reverse);
	if (error)
		return;
	lb_ct_short.delete(&pkt->reverse);
	lb_ct_short.delete(&pkt->tuple);
}

/*
 * Moves a closed entry to lb_ct_short. Returns 0 unless another packet has just done so. In that
 * table, LB_CT_ACK means that this direction continued after a reset.
 */
static __always_inline int lb_conntrack_retire(struct lb_tuple *key,
					       const struct lb_conntrack *entry)
{
	struct lb_conntrack *closed;

	if (!(lb_ct_state(entry) & LB_CT_ESTABLISHED))
		return 0;
	closed = lb_conntrack_copy(entry);
	if (!closed || !lb_conntrack_is_settled(key, entry, 0))
		return 1;
	closed->state &= ~(LB_CT_ESTABLISHED | LB_CT_ACK);
	closed->other_state &= ~LB_CT_ESTABLISHED;
	return lb_ct_short.update(key, closed) ? 0 : lb_conntrack.delete(key);
}

static __always_inline int lb_conntrack_retire_both(struct lb_packet *pkt,
						    const struct lb_conntrack *entry,
						    const struct lb_conntrack *other)
{
	int is_original = entry->direction == LB_DIR_ORIGINAL;
	int reverse = lb_conntrack_retire(&pkt->reverse, other);
	int own = lb_conntrack_retire(&pkt->tuple, entry);

	return is_original ? own : reverse;
}

/* In SCTP, SHUTDOWN COMPLETE and ABORT both count as resets: the first is the normal end. */
static __always_inline int lb_conntrack_reset_reason(const struct lb_packet *pkt,
						     const struct lb_conntrack *entry)
{
	if (entry->direction == LB_DIR_REPLY && !(entry->state & LB_CT_SYN))
		return LB_END_BACKEND_REFUSED;
	return pkt->tuple.proto == IPPROTO_SCTP ? LB_END_CLOSED : LB_END_RESET;
}

/* Whether the client resets after a bare ACK to its SYN: see lb_conntrack_retry(). */
static __always_inline int lb_conntrack_may_retry(const struct lb_conntrack *entry,
						  const struct lb_conntrack *other)
{
	return entry->direction == LB_DIR_ORIGINAL && lb_ct_state(entry) == LB_CT_SYN &&
	       lb_ct_state(other) == LB_CT_ACK;
}

/*
 * A reset may be forged: it only moves the flow to lb_ct_short, where the LRU may evict it, and is
 * reverted if both sides continue.
 */
static __always_inline void lb_conntrack_reset(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *other = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);

	if (!other) {
		entry->state |= LB_CT_CLOSED;
		lb_conntrack_retire(&pkt->tuple, entry);
		return;
	}
	if (!lb_conntrack_may_retry(entry, other))
		lb_flow_end(pkt, entry, other, lb_conntrack_reset_reason(pkt, entry));
	entry->state = (entry->state | LB_CT_CLOSED) & ~LB_CT_ACK;
	other->other_state |= LB_CT_CLOSED;
	if (lb_conntrack_retire_both(pkt, entry, other))
		lb_flow_end_cancel();
}

/* A packet opens another flow that replaces this one. */
static __always_inline void lb_conntrack_replace(struct lb_packet *pkt, struct lb_conntrack *entry,
						 int is_udp)
{
	struct lb_conntrack *reply = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, is_udp);
	int is_settled = lb_ct_state(entry) & LB_CT_ESTABLISHED && !(entry->flags & LB_CT_DSR);
	int is_late;

	if (reply)
		lb_flow_end(pkt, entry, reply, LB_END_REPLACED);
	if (is_settled && !is_udp)
		is_late = lb_conntrack_remove(pkt, entry);
	else
		is_late = lb_conntrack_delete(&pkt->tuple, is_settled, is_udp);
	if (is_late)
		lb_flow_end_cancel();
}

/* Before an endpoint has answered the SYN, it has nothing to close: such a FIN is forged. */
static __always_inline void lb_conntrack_fin(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *other;

	if (!(entry->state & LB_CT_SYN))
		return;
	other = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);
	if (!other)
		return;
	other->other_state |= LB_CT_OTHER_FIN;
	if (lb_ct_state(entry) & LB_CT_OTHER_FIN) {
		other->other_state |= LB_CT_CLOSED;
		entry->state |= LB_CT_CLOSED;
	}
}

/*
 * Both sides have acknowledged the other's FIN: the flow has ended. The entries of a masqueraded
 * flow are kept as closed, so that no other flow gets its port while the pod is in TIME_WAIT.
 */
static __always_inline void lb_conntrack_fin_acked(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	struct lb_conntrack *other = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);
	int is_late;

	if (!other || (__s32)(pkt->ack - other->sent_end) < 0)
		return;
	entry->state |= LB_CT_FIN_ACKED;
	if (!(other->state & LB_CT_FIN_ACKED))
		return;
	lb_flow_end(pkt, entry, other, LB_END_CLOSED);
	if (entry->flags & LB_CT_SNAT)
		is_late = lb_conntrack_retire_both(pkt, entry, other);
	else
		is_late = lb_conntrack_remove(pkt, entry);
	if (is_late)
		lb_flow_end_cancel();
}

static __always_inline void lb_conntrack_track_ack(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	__u8 state = lb_ct_state(entry);

	int is_fin_pending = (state & (LB_CT_OTHER_FIN | LB_CT_FIN_ACKED)) == LB_CT_OTHER_FIN;
	int is_original = entry->direction == LB_DIR_ORIGINAL;

	if (is_original && !is_fin_pending && !(state & (LB_CT_ESTABLISHED | LB_CT_CLOSED))) {
		lb_conntrack_establish(pkt, entry);
		return;
	}
	entry->state = (entry->state | LB_CT_ACK) & ~LB_CT_RETRIED;
	if (is_fin_pending)
		lb_conntrack_fin_acked(pkt, entry);
	else if (is_original && !(state & LB_CT_ESTABLISHED))
		lb_conntrack_take_back(pkt, entry);
}

/*
 * A SYN of a known flow: the backend's answer, or a repeated one from the client, which has then
 * waited a second for an answer (RFC 6298, 2.1).
 */
static __always_inline void lb_conntrack_track_syn(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	struct lb_conntrack *reply;
	struct lb_client_key client;

	if (entry->direction == LB_DIR_REPLY && !(entry->state & LB_CT_SYN))
		lb_latency_note(entry->desc_flags, entry->backend, entry->serial,
				pkt->now - entry->created);
	entry->state |= LB_CT_SYN;
	if (entry->direction == LB_DIR_REPLY) {
		if (pkt->tuple.proto != IPPROTO_TCP)
			entry->sent_end = pkt->ack;
		if (lb_backend_is_watched(entry->backend, entry->serial))
			lb_ejection_note_success(entry->backend);
		return;
	}
	if (lb_ct_state(entry) & LB_CT_ESTABLISHED)
		entry->state |= LB_CT_RETRIED;
	if (entry->flags & LB_CT_UNANSWERED ||
	    (__s64)(entry->last_seen - entry->created) < (__s64)LB_ANSWER_TIME)
		return;
	reply = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);
	if (!reply || lb_ct_state(reply) & (LB_CT_SYN | LB_CT_ACK))
		return;
	entry->flags |= LB_CT_UNANSWERED;
	lb_conntrack_client(entry, &pkt->tuple.saddr, &client);
	lb_ejection_note_failure(entry->backend, entry->serial, &client);
}

static __always_inline void lb_conntrack_track_connection(struct lb_packet *pkt,
							  struct lb_conntrack *entry)
{
	if (pkt->tcp_flags & LB_TCP_RST) {
		if (!lb_conntrack_ignores_reset(pkt, entry))
			lb_conntrack_reset(pkt, entry);
		return;
	}
	if (pkt->tuple.proto == IPPROTO_TCP && !lb_conntrack_track_sent(pkt, entry))
		return;
	if (pkt->tcp_flags & LB_TCP_SYN) {
		lb_conntrack_track_syn(pkt, entry);
		return;
	}
	if (pkt->tcp_flags & LB_TCP_FIN)
		lb_conntrack_fin(pkt, entry);
	if (pkt->tcp_flags & LB_TCP_ACK)
		lb_conntrack_track_ack(pkt, entry);
}

static __always_inline void lb_conntrack_count(const struct lb_packet *pkt,
					       struct lb_conntrack *entry)
{
	entry->last_seen = pkt->now;
	__sync_fetch_and_add(&entry->packets, pkt->segs);
	__sync_fetch_and_add(&entry->bytes, lb_payload(pkt));
	lb_count_packet(pkt, entry);
}

/* Counts the packet and updates the state. The entry may move: do not use it afterwards. */
static __always_inline void lb_conntrack_track(struct lb_packet *pkt, struct lb_conntrack *entry,
					       int is_udp)
{
	lb_conntrack_count(pkt, entry);
	if (is_udp)
		lb_conntrack_track_udp(pkt, entry);
	else
		lb_conntrack_track_connection(pkt, entry);
}

#endif
