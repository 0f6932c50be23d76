/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flow state: how packets change it and move entries between lb_ct_short and lb_conntrack. */
#ifndef LB_CT_STATE_H
#define LB_CT_STATE_H

#include "clock.h"
#include "conntrack.h"
#include "counters.h"
#include "flow_record.h"
#include "maps.h"
#include "packet.h"

/* While lb_conntrack is full the flow stays in lb_ct_short, and every packet tries again. */
static __always_inline void lb_conntrack_promote(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *reply = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);

	if (!reply || !(reply->state & LB_CT_SYN))
		return;
	entry->state |= LB_CT_ESTABLISHED;
	reply->peer_state |= LB_CT_ESTABLISHED;
	if (!lb_conntrack.update(&pkt->peer, reply)) {
		if (!lb_conntrack.update(&pkt->tuple, entry)) {
			lb_ct_short.delete(&pkt->peer);
			lb_ct_short.delete(&pkt->tuple);
			return;
		}
		lb_conntrack.delete(&pkt->peer);
	}
	entry->state &= ~LB_CT_ESTABLISHED;
	reply->peer_state &= ~LB_CT_ESTABLISHED;
}

/* Moves a closed entry to lb_ct_short. Returns 0 unless another packet has just done so. */
static __always_inline int lb_conntrack_retire(struct lb_tuple *key,
					       const struct lb_conntrack *entry)
{
	struct lb_conntrack *closed;
	int zero = 0;

	closed = lb_ct_scratch.lookup(&zero);
	if (!closed || !(lb_ct_state(entry) & LB_CT_ESTABLISHED))
		return 0;
	*closed = *entry;
	closed->state &= ~LB_CT_ESTABLISHED;
	closed->peer_state &= ~LB_CT_ESTABLISHED;
	return lb_ct_short.update(key, closed) ? 0 : lb_conntrack.delete(key);
}

static __always_inline int lb_conntrack_retire_both(struct lb_packet *pkt,
						    const struct lb_conntrack *entry,
						    const struct lb_conntrack *other)
{
	int is_original = entry->direction == LB_DIR_ORIGINAL;
	int peer = lb_conntrack_retire(&pkt->peer, other);
	int own = lb_conntrack_retire(&pkt->tuple, entry);

	return is_original ? own : peer;
}

/* In SCTP, SHUTDOWN COMPLETE and ABORT both count as a reset: the first is the usual end. */
static __always_inline int lb_conntrack_reset_reason(const struct lb_packet *pkt,
						     const struct lb_conntrack *entry)
{
	if (entry->direction == LB_DIR_REPLY && !(entry->state & LB_CT_SYN))
		return LB_END_BACKEND_REFUSED;
	return pkt->tuple.proto == IPPROTO_SCTP ? LB_END_CLOSED : LB_END_RESET;
}

/* Whether the client resets after a bare ACK in answer to its SYN: see lb_conntrack_retry(). */
static __always_inline int lb_conntrack_may_retry(const struct lb_conntrack *entry,
						  const struct lb_conntrack *other)
{
	return entry->direction == LB_DIR_ORIGINAL && lb_ct_state(entry) == LB_CT_SYN &&
	       lb_ct_state(other) == LB_CT_ACK;
}

/* A RST may be forged: it only moves the flow to lb_ct_short, where the LRU may evict it. */
static __always_inline void lb_conntrack_reset(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *other = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);

	if (!other) {
		entry->state |= LB_CT_CLOSED;
		lb_conntrack_retire(&pkt->tuple, entry);
		return;
	}
	if (!lb_conntrack_may_retry(entry, other))
		lb_flow_end(pkt, entry, other, lb_conntrack_reset_reason(pkt, entry));
	entry->state |= LB_CT_CLOSED;
	other->peer_state |= LB_CT_CLOSED;
	if (lb_conntrack_retire_both(pkt, entry, other))
		lb_flow_end_cancel();
}

/* A packet opens another flow in place of this one. */
static __always_inline void lb_conntrack_replace(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *reply = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);
	int is_late;

	if (reply)
		lb_flow_end(pkt, entry, reply, LB_END_REPLACED);
	if (lb_ct_state(entry) & LB_CT_ESTABLISHED)
		is_late = lb_conntrack_remove(pkt, entry);
	else
		is_late = lb_conntrack_delete(&pkt->tuple, 0);
	if (is_late)
		lb_flow_end_cancel();
}

/* Stores in the other direction's entry which acknowledgement covers this FIN. */
static __always_inline void lb_conntrack_fin(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *other = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);

	if (!other)
		return;
	other->fin_end = pkt->seq + lb_payload(pkt) + 1;
	other->peer_state |= LB_CT_PEER_FIN;
	if (lb_ct_state(entry) & LB_CT_PEER_FIN) {
		other->peer_state |= LB_CT_CLOSED;
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
	struct lb_conntrack *other = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);
	int is_late;

	entry->state |= LB_CT_FIN_ACKED;
	if (!other || !(other->state & LB_CT_FIN_ACKED))
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
	__u8 fin = lb_ct_state(entry) & (LB_CT_PEER_FIN | LB_CT_FIN_ACKED);

	entry->state |= LB_CT_ACK;
	if (fin == LB_CT_PEER_FIN && (__s32)(pkt->ack - entry->fin_end) >= 0)
		lb_conntrack_fin_acked(pkt, entry);
	else if (entry->direction == LB_DIR_ORIGINAL &&
		 !(lb_ct_state(entry) & (LB_CT_ESTABLISHED | LB_CT_CLOSED)))
		lb_conntrack_promote(pkt, entry);
}

static __always_inline void lb_conntrack_track_connection(struct lb_packet *pkt,
							  struct lb_conntrack *entry)
{
	if (pkt->tcp_flags & LB_TCP_RST) {
		lb_conntrack_reset(pkt, entry);
		return;
	}
	if (pkt->tcp_flags & LB_TCP_SYN) {
		entry->state |= LB_CT_SYN;
		return;
	}
	if (pkt->tcp_flags & LB_TCP_FIN)
		lb_conntrack_fin(pkt, entry);
	if (pkt->tcp_flags & LB_TCP_ACK)
		lb_conntrack_track_ack(pkt, entry);
}

/* Counts the packet and updates the state. The entry may move: do not use it afterwards. */
static __always_inline void lb_conntrack_track(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	entry->last_seen = lb_now();
	__sync_fetch_and_add(&entry->packets, pkt->segs);
	__sync_fetch_and_add(&entry->bytes, lb_payload(pkt));
	lb_count_packet(pkt, entry);
	if (pkt->tuple.proto != IPPROTO_UDP)
		lb_conntrack_track_connection(pkt, entry);
	else if (entry->direction == LB_DIR_REPLY)
		entry->state |= LB_CT_ACK;
}

#endif
