/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Sequence numbers of TCP: how far each side has sent, and which packets cannot be of the
 * connection. Whoever knows only its addresses and ports shall not end it.
 */
#ifndef LB_CT_SEQUENCE_H
#define LB_CT_SEQUENCE_H

#include "conntrack.h"
#include "ct_establish.h"
#include "packet.h"

/* How far a reset's sequence number may be from the end of what its sender has sent. */
#define LB_RESET_DISTANCE 65536

/* A packet at most this far back may be a retransmission. */
#define LB_RETRANSMITTED (1 << 24)

/* How much of what one side sends the other may still have to acknowledge. */
#define LB_IN_FLIGHT (1 << 20)

/*
 * Whether a reset of an opening flow, not near what its sender has sent, answers what is known of the
 * other side: the endpoint refuses a SYN, which it has not answered before, or the client a bare ACK
 * (ct_match.h).
 */
static __always_inline int lb_conntrack_refuses(struct lb_packet *pkt,
						const struct lb_conntrack *entry)
{
	struct lb_conntrack *other = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);

	if (!other)
		return 1;
	if (entry->direction == LB_DIR_ORIGINAL)
		return (lb_ct_state(other) & (LB_CT_SYN | LB_CT_ACK)) == LB_CT_ACK;
	return !(entry->state & LB_CT_SYN) && other->sent_end &&
	       other->sent_end - pkt->ack <= LB_ACK_WINDOW;
}

/*
 * Whether a TCP reset is too far from what its sender has sent for the receiver to accept it (RFC
 * 5961 requires the exact next sequence number; lost or late packets may lie between).
 */
static __always_inline int lb_conntrack_ignores_reset(struct lb_packet *pkt,
						      const struct lb_conntrack *entry)
{
	__s32 distance = pkt->seq - entry->sent_end;

	if (pkt->tuple.proto != IPPROTO_TCP ||
	    (entry->sent_end && distance <= LB_RESET_DISTANCE && distance >= -LB_RESET_DISTANCE))
		return 0;
	return lb_ct_state(entry) & LB_CT_ESTABLISHED || !lb_conntrack_refuses(pkt, entry);
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
static __always_inline int lb_conntrack_knows_other(struct lb_packet *pkt,
						    const struct lb_conntrack *entry)
{
	struct lb_conntrack *other = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);

	return !other || (other->sent_end && (__u32)(other->sent_end - pkt->ack) <= LB_IN_FLIGHT);
}

/*
 * The endpoint has accepted a connection in place of one that it no longer has. Neither side sends
 * before the client has acknowledged that, so nobody else writes the states. It may also be forged,
 * or a late copy, and the connection go on: the next packet of each side tells how far that is.
 */
static __always_inline void lb_conntrack_start_again(struct lb_conntrack *entry,
						     struct lb_conntrack *original)
{
	__u8 closing = LB_CT_OTHER_FIN | LB_CT_FIN_ACKED;

	original->sent_end = 0;
	entry->sent_end = 0;
	original->state &= ~closing;
	original->other_state &= ~closing;
	entry->state &= ~closing;
	entry->other_state &= ~closing;
}

/*
 * Whether the endpoint answers a later SYN of the client by accepting a connection in place of one
 * that it no longer has. A late copy of its first answer is not ahead of what it has sent.
 */
static __always_inline int lb_conntrack_accepts_again(const struct lb_packet *pkt,
						      const struct lb_conntrack *entry,
						      const struct lb_conntrack *original,
						      __u32 end)
{
	return original->state & LB_CT_RETRIED && pkt->tcp_flags & LB_TCP_ACK &&
	       entry->sent_end - end > LB_RETRANSMITTED;
}

/*
 * A SYN of a known flow. Of an endpoint only the answer to the client's SYN counts, to the one that
 * opened the flow or to a later one. A client's SYN on an established flow may be refused. Returns 0
 * for any other.
 */
static __always_inline int lb_conntrack_track_syn_sent(struct lb_packet *pkt,
						       struct lb_conntrack *entry, __u32 end)
{
	int is_established = lb_ct_state(entry) & LB_CT_ESTABLISHED;
	struct lb_conntrack *original;

	if (entry->direction == LB_DIR_ORIGINAL) {
		if (!is_established)
			entry->sent_end = end;
		return 1;
	}
	original = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);
	if (!original)
		return 0;
	if (is_established) {
		if (!lb_conntrack_accepts_again(pkt, entry, original, end))
			return 0;
		lb_conntrack_start_again(entry, original);
		return 1;
	}
	if (original->sent_end - pkt->ack > LB_ACK_WINDOW)
		return 0;
	entry->sent_end = end;
	return 1;
}

/*
 * Remembers how far this direction has sent. Returns 0 for a packet that is probably forged: its
 * receiver ignores it.
 */
static __always_inline int lb_conntrack_track_sent(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	__u32 end = lb_tcp_end(pkt);
	__s32 progress = end - entry->sent_end;
	int is_established = lb_ct_state(entry) & LB_CT_ESTABLISHED;

	if (pkt->tcp_flags & LB_TCP_SYN)
		return lb_conntrack_track_syn_sent(pkt, entry, end);
	if (entry->sent_end && !lb_conntrack_continues(pkt, progress) &&
	    !lb_conntrack_knows_other(pkt, entry))
		return 0;
	if (!is_established || progress > 0 || progress < -LB_RETRANSMITTED ||
	    pkt->tcp_flags & LB_TCP_FIN)
		entry->sent_end = end;
	return 1;
}

#endif
