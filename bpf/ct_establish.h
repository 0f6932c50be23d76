/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Established flows: what shows that both sides take part, and the move to the tables from which
 * nothing is evicted.
 */
#ifndef LB_CT_ESTABLISH_H
#define LB_CT_ESTABLISH_H

#include "clock.h"
#include "conntrack.h"
#include "ejection.h"
#include "maps.h"
#include "packet.h"

/* How much of what a backend sends with its first packets may be unacknowledged. */
#define LB_ACK_WINDOW 65536

/* A UDP flow with answers that lasts longer than this is a stream, as in netfilter. */
#define LB_UDP_EXCHANGE (2 * LB_SECOND)

/* Instead of an error: the entry was diverted (LB_SETTING_DIVERT) to where it belongs from now on. */
#define LB_DIVERTED 2

/*
 * Copies an entry to the table of established flows or streams, marked as established. Returns 0, an
 * error, LB_MOVED or LB_DIVERTED.
 */
static __always_inline int lb_conntrack_promote_one(struct lb_tuple *key,
						    const struct lb_conntrack *entry, __u8 state,
						    __u8 other_state, int is_udp)
{
	struct lb_conntrack *copy = lb_conntrack_copy(entry);
	int is_opening;

	if (!copy)
		return -1;
	is_opening = lb_conntrack_is_opening(key, entry, is_udp);
	if (!is_opening && !lb_conntrack_is_settled(key, entry, is_udp))
		return LB_MOVED;
	copy->state |= state;
	copy->other_state |= other_state;
	if (lb_conntrack_settle(key, copy, is_udp))
		return -1;
	return is_opening ? 0 : LB_DIVERTED;
}

/*
 * Moves a flow to the table of established flows or streams. Without room there it stays where it
 * is, and every packet tries again. What is at the key of a diverted entry among opening flows was put
 * there by the agent, which is about to delete the diverted one (diverted.py): it stays.
 */
static __always_inline void lb_conntrack_promote(struct lb_packet *pkt, struct lb_conntrack *entry,
						 struct lb_conntrack *other, int is_udp)
{
	int reverse, own;

	reverse = lb_conntrack_promote_one(&pkt->reverse, other, 0, LB_CT_ESTABLISHED, is_udp);
	if (reverse < 0 || reverse == LB_MOVED)
		return;
	own = lb_conntrack_promote_one(&pkt->tuple, entry, LB_CT_ESTABLISHED, 0, is_udp);
	if (own < 0 && !reverse)
		lb_conntrack_delete_settled(&pkt->reverse, is_udp);
	if (own < 0 || own == LB_MOVED)
		return;
	if (!reverse)
		lb_conntrack_delete_opening(&pkt->reverse, is_udp);
	if (!own)
		lb_conntrack_delete_opening(&pkt->tuple, is_udp);
}

/*
 * Whether a client that opens a flow has seen the answer to its SYN: it acknowledges what the backend
 * has sent, or has the tag that its INIT ACK asks for. One with a made-up address cannot know either.
 */
static __always_inline int lb_conntrack_has_seen(const struct lb_packet *pkt,
						 const struct lb_conntrack *reply)
{
	__u32 unacknowledged = reply->sent_end - pkt->ack;

	if (!(reply->state & LB_CT_SYN))
		return 0;
	return unacknowledged <= (pkt->tuple.proto == IPPROTO_TCP ? LB_ACK_WINDOW : 0);
}

/* The client acknowledges the answer to its SYN. Waits while lb_conntrack is being replaced. */
static __always_inline void lb_conntrack_establish(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	struct lb_conntrack *reply = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);
	struct lb_client_key client;

	if (!reply || !lb_conntrack_has_seen(pkt, reply))
		return;
	entry->state |= LB_CT_ACK;
	if (lb_backend_is_watched(entry->backend, entry->serial)) {
		lb_conntrack_client(entry, &pkt->tuple.saddr, &client);
		lb_ejection_note_client(entry->backend, entry->serial, &client);
	}
	if (!lb_has_setting(LB_SETTING_HOLD))
		lb_conntrack_promote(pkt, entry, reply, 0);
}

/* UDP, as in netfilter: a flow with answers that lasts longer than an exchange is a stream. */
static __always_inline void lb_conntrack_track_udp(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	struct lb_conntrack *other;

	if (entry->direction == LB_DIR_REPLY)
		entry->state |= LB_CT_ACK;
	if (lb_ct_state(entry) & LB_CT_ESTABLISHED ||
	    (__s64)(entry->last_seen - entry->created) <= (__s64)LB_UDP_EXCHANGE)
		return;
	other = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 1);
	if (other && (entry->state | other->state) & LB_CT_ACK)
		lb_conntrack_promote(pkt, entry, other, 1);
}

#endif
