/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Whether a conntrack entry applies to a packet, or the packet opens a new flow in its place.
 */
#ifndef LB_CT_MATCH_H
#define LB_CT_MATCH_H

#include "backend.h"
#include "conntrack.h"
#include "ct_state.h"
#include "flow_timeout.h"

static __always_inline int lb_conntrack_is_stale_udp(struct lb_packet *pkt,
						     const struct lb_conntrack *entry)
{
	if (pkt->tuple.proto != IPPROTO_UDP)
		return 0;
	if (entry->direction == LB_DIR_ORIGINAL &&
	    !lb_backend_serving(entry->backend, entry->generation))
		return 1;
	return lb_conntrack_is_idle(&pkt->tuple, entry, &pkt->peer);
}

/*
 * What a backend sends on a flow that has ended may be for somebody else, who came to it directly
 * from the same port: when it accepts a connection, which did not open here, or when the client
 * has begun another flow. Of the first the old flow is forgotten, or it would claim the new one.
 */
static __always_inline int lb_conntrack_is_foreign(struct lb_packet *pkt,
						   const struct lb_conntrack *entry)
{
	__u8 accepts = LB_TCP_SYN | LB_TCP_ACK;
	int has_original;

	if (pkt->tuple.proto == IPPROTO_UDP || entry->direction != LB_DIR_REPLY ||
	    !(lb_ct_state(entry) & LB_CT_CLOSED))
		return 0;
	has_original = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer) != NULL;
	if ((pkt->tcp_flags & accepts) != accepts)
		return !has_original;
	if (has_original)
		lb_ct_short.delete(&pkt->peer);
	lb_ct_short.delete(&pkt->tuple);
	return 1;
}

/*
 * A backend that has an earlier connection from the same port in TIME_WAIT may answer a SYN with a
 * bare ACK. The client resets, which ends what the backend remembers, and sends its SYN again some
 * milliseconds later: the flow begins anew as it is. From another port it might meet the next one.
 * Once only, because the backend may be deaf to resets (RFC 1337). Returns 0 for any other flow.
 */
static __always_inline int lb_conntrack_retry(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *reply;

	if (lb_ct_state(entry) != (LB_CT_SYN | LB_CT_CLOSED))
		return 0;
	reply = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);
	if (!reply || lb_ct_state(reply) != (LB_CT_ACK | LB_CT_CLOSED))
		return 0;
	reply->state = 0;
	reply->peer_state = 0;
	entry->state = LB_CT_SYN | LB_CT_RETRIED;
	entry->peer_state = 0;
	return 1;
}

/* Whether the entry still decides for this packet, or the packet opens a new flow in its place. */
static __always_inline int lb_conntrack_is_current(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	if (lb_conntrack_is_stale_udp(pkt, entry) || lb_conntrack_is_foreign(pkt, entry))
		return 0;
	if (!lb_ct_is_syn(pkt) || entry->direction != LB_DIR_ORIGINAL)
		return 1;
	if (!lb_backend_usable(entry->backend, entry->generation))
		return 0;
	return !(lb_ct_state(entry) & LB_CT_CLOSED) || lb_conntrack_retry(pkt, entry);
}

/* A flow lives only as a pair; the LRU may have taken one half before it was established. */
static __always_inline int lb_has_lost_reply(struct lb_packet *pkt,
					     const struct lb_conntrack *entry)
{
	if (entry->direction != LB_DIR_ORIGINAL || lb_ct_state(entry) & LB_CT_ESTABLISHED)
		return 0;
	if (pkt->tuple.proto != IPPROTO_UDP && !lb_ct_is_syn(pkt) && !(entry->flags & LB_CT_SNAT))
		return 0;
	return !lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);
}

/*
 * Whether the entry is for this packet at this hook. One that a SYN replaces goes at once: the new
 * connection may be none of ours. The reply of an ended flow stays, to keep its source port.
 */
static __always_inline int lb_conntrack_applies(struct lb_packet *pkt, struct lb_conntrack *entry,
						int hook)
{
	if (entry->hook != hook)
		return 0;
	if (lb_conntrack_is_current(pkt, entry) && !lb_has_lost_reply(pkt, entry))
		return 1;
	if (entry->direction != LB_DIR_ORIGINAL)
		return 0;
	lb_conntrack_replace(pkt, entry);
	return 0;
}

#endif
