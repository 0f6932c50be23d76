/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Sequence numbers of established TCP: how far each side has sent, and which packets cannot be of the
 * connection. Whoever knows only its addresses and ports shall not end it.
 */
#ifndef LB_CT_SEQUENCE_H
#define LB_CT_SEQUENCE_H

#include "conntrack.h"
#include "packet.h"

/* How far a reset's sequence number may be from the end of what its sender has sent. */
#define LB_RESET_DISTANCE 65536

/* A packet at most this far back may be a retransmission. */
#define LB_RETRANSMITTED (1 << 24)

/* How much of what one side sends the other may still have to acknowledge. */
#define LB_IN_FLIGHT (1 << 20)

/*
 * Whether a TCP reset is too far from what its sender has sent for the receiver to accept it (RFC
 * 5961 requires the exact next sequence number; lost or late packets may lie between).
 */
static __always_inline int lb_conntrack_ignores_reset(const struct lb_packet *pkt,
						      const struct lb_conntrack *entry)
{
	__s32 distance = pkt->seq - entry->sent_end;

	if (pkt->tuple.proto != IPPROTO_TCP || !entry->sent_end ||
	    !(lb_ct_state(entry) & LB_CT_ESTABLISHED))
		return 0;
	return distance > LB_RESET_DISTANCE || distance < -LB_RESET_DISTANCE;
}

/*
 * Whether a packet is at most a window ahead of what its sender has sent before, or a retransmission.
 * A FIN is near, since it changes the state.
 */
static __always_inline int lb_conntrack_continues(const struct lb_packet *pkt, __s32 progress)
{
	__s32 back = pkt->tcp_flags & LB_TCP_FIN ? LB_RESET_DISTANCE : LB_RETRANSMITTED;

	return progress <= LB_RESET_DISTANCE && progress >= -back;
}

/*
 * Whether the sender of a packet that is far from those before it is part of the connection: it
 * acknowledges what the other side has sent, which whoever only knows the addresses and ports does
 * not know. Packets may be lost before they get here.
 */
static __always_inline int lb_conntrack_knows_peer(struct lb_packet *pkt,
						   const struct lb_conntrack *entry)
{
	struct lb_conntrack *other = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer, 0);

	return !other || (__u32)(other->sent_end - pkt->ack) <= LB_IN_FLIGHT;
}

/* The endpoint accepts a connection in place of one that it no longer has. */
static __always_inline void lb_conntrack_start_again(struct lb_packet *pkt,
						     struct lb_conntrack *entry)
{
	struct lb_conntrack *original = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer, 0);

	entry->sent_end = pkt->seq + 1;
	if (original)
		original->sent_end = pkt->ack;
}

/*
 * Remembers how far this direction has sent. Returns 0 for a packet that is probably forged: its
 * receiver ignores it. A client's SYN on an established flow may be refused.
 */
static __always_inline int lb_conntrack_track_sent(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	__u8 counted = LB_TCP_SYN | LB_TCP_FIN;
	__u32 end = pkt->seq + lb_payload(pkt) + !!(pkt->tcp_flags & counted);
	__s32 progress = end - entry->sent_end;
	int is_established = lb_ct_state(entry) & LB_CT_ESTABLISHED;

	if (pkt->tcp_flags & LB_TCP_SYN && is_established) {
		if (entry->direction == LB_DIR_REPLY)
			lb_conntrack_start_again(pkt, entry);
		return 1;
	}
	if (is_established && !lb_conntrack_continues(pkt, progress) &&
	    !lb_conntrack_knows_peer(pkt, entry))
		return 0;
	if (progress > 0 || progress < -LB_RETRANSMITTED || pkt->tcp_flags & LB_TCP_FIN)
		entry->sent_end = end;
	return 1;
}

#endif
