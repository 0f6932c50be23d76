/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How the packets of a flow move its state on, and with it the entries from table to table. */
#ifndef LB_TRACK_H
#define LB_TRACK_H

#include "conntrack.h"
#include "maps.h"
#include "packet.h"

/* While lb_conntrack is full the flow stays where it is, and every packet tries again. */
static __always_inline void lb_conntrack_promote(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *reply = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);

	if (!reply || !(reply->state & LB_CT_SYN))
		return;
	entry->state |= LB_CT_ESTABLISHED;
	reply->state |= LB_CT_ESTABLISHED;
	if (!lb_conntrack.update(&pkt->peer, reply)) {
		if (!lb_conntrack.update(&pkt->tuple, entry)) {
			lb_ct_short.delete(&pkt->peer);
			lb_ct_short.delete(&pkt->tuple);
			return;
		}
		lb_conntrack.delete(&pkt->peer);
	}
	entry->state &= ~LB_CT_ESTABLISHED;
	reply->state &= ~LB_CT_ESTABLISHED;
}

static __always_inline void lb_conntrack_close_one(struct lb_tuple *key, struct lb_conntrack *entry)
{
	entry->state |= LB_CT_CLOSED;
	if (!(entry->state & LB_CT_ESTABLISHED))
		return;
	entry->state &= ~LB_CT_ESTABLISHED;
	if (!lb_ct_short.update(key, entry))
		lb_conntrack.delete(key);
}

/* A reset may be forged or out of window: the flow goes where pressure may take it, no further. */
static __always_inline void lb_conntrack_reset(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *other = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);

	if (other)
		lb_conntrack_close_one(&pkt->peer, other);
	lb_conntrack_close_one(&pkt->tuple, entry);
}

/* A FIN: the other direction is told which acknowledgement covers it. */
static __always_inline void lb_conntrack_fin(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *other = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);
	__u32 payload = pkt->len - (pkt->l4 - pkt->l3) - pkt->header_len;

	if (!other)
		return;
	other->fin_end = pkt->seq + payload + 1;
	other->state |= LB_CT_PEER_FIN;
	if (entry->state & LB_CT_PEER_FIN) {
		other->state |= LB_CT_CLOSED;
		entry->state |= LB_CT_CLOSED;
	}
}

/* Both sides have acknowledged the other's FIN: nothing that matters can follow. */
static __always_inline void lb_conntrack_fin_acked(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	struct lb_conntrack *other = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);

	entry->state |= LB_CT_FIN_ACKED;
	if (other && other->state & LB_CT_FIN_ACKED)
		lb_conntrack_remove(pkt, entry);
}

static __always_inline void lb_conntrack_track_ack(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	__u8 fin = entry->state & (LB_CT_PEER_FIN | LB_CT_FIN_ACKED);

	entry->state |= LB_CT_ACK;
	if (fin == LB_CT_PEER_FIN && (__s32)(pkt->ack - entry->fin_end) >= 0)
		lb_conntrack_fin_acked(pkt, entry);
	else if (entry->direction == LB_DIR_ORIGINAL &&
		 !(entry->state & (LB_CT_ESTABLISHED | LB_CT_CLOSED)))
		lb_conntrack_promote(pkt, entry);
}

static __always_inline void lb_conntrack_track_tcp(struct lb_packet *pkt,
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

/* Counts the packet and moves the state on. May move the entry: it is not to be used after. */
static __always_inline void lb_conntrack_track(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	entry->last_seen = lb_now();
	__sync_fetch_and_add(&entry->packets, 1);
	__sync_fetch_and_add(&entry->bytes, pkt->len);
	if (pkt->tuple.proto == IPPROTO_TCP)
		lb_conntrack_track_tcp(pkt, entry);
}

#endif
