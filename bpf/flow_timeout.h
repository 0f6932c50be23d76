/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Flow timeouts: whether a flow is over because it has had no packets. The agent deletes entries by
 * the same timeouts; here they decide whether a packet continues a flow and whether its port is
 * free.
 */
#ifndef LB_FLOW_TIMEOUT_H
#define LB_FLOW_TIMEOUT_H

#include "clock.h"
#include "conntrack.h"
#include "maps.h"
#include "packet.h"

/* After this time an incomplete handshake may lose its port to another flow. */
#define LB_HANDSHAKE (3 * LB_SECOND)

/* For this time a pod may have a closed connection in TIME_WAIT, and may not accept a new one. */
#define LB_TIME_WAIT (60 * LB_SECOND)

/* The timeout of a UDP flow, which is shorter until it has an answer. state: of both directions. */
static __always_inline __s64 lb_conntrack_udp_timeout(const struct lb_settings *settings,
						      __u8 state)
{
	__u32 seconds = state & LB_CT_ACK ? settings->udp_stream_timeout : settings->udp_timeout;

	return seconds * LB_SECOND;
}

/* Whether the UDP timeout has passed since the last packet of either direction. */
static __always_inline int lb_conntrack_is_idle(const struct lb_tuple *key,
						const struct lb_conntrack *entry,
						struct lb_tuple *peer_key)
{
	struct lb_settings *settings;
	struct lb_conntrack *peer;
	__u64 now = lb_now();
	__s64 silence, limit;
	int zero = 0;

	settings = lb_settings.lookup(&zero);
	if (!settings)
		return 0;
	silence = now - entry->last_seen;
	if (silence <= lb_conntrack_udp_timeout(settings, entry->state))
		return 0;
	peer = lb_conntrack_peer(key, entry, peer_key);
	if (!peer)
		return 1;
	limit = lb_conntrack_udp_timeout(settings, entry->state | peer->state);
	return silence > limit && (__s64)(now - peer->last_seen) > limit;
}

/*
 * Whether a flow is over, so that another may have its port. choosy: not if it ended only recently.
 */
static __always_inline int lb_conntrack_has_ended(const struct lb_tuple *reply,
						  const struct lb_conntrack *old,
						  const struct lb_settings *settings, __u64 now,
						  int choosy)
{
	__s64 silence = now - old->last_seen;

	if (reply->proto == IPPROTO_UDP)
		return silence >= lb_conntrack_udp_timeout(settings, old->state);
	return lb_ct_state(old) & LB_CT_CLOSED && (!choosy || silence >= (__s64)LB_TIME_WAIT);
}

/* Whether neither side completed the handshake within LB_HANDSHAKE. */
static __always_inline int lb_conntrack_is_abandoned(struct lb_packet *pkt,
						     const struct lb_tuple *reply,
						     const struct lb_conntrack *old, __u64 now)
{
	struct lb_conntrack *original;

	if (reply->proto == IPPROTO_UDP || lb_ct_state(old) & (LB_CT_ESTABLISHED | LB_CT_ACK) ||
	    (__s64)(now - old->created) < (__s64)LB_HANDSHAKE)
		return 0;
	if (!(old->state & LB_CT_SYN))
		return 1;
	original = lb_conntrack_peer(reply, old, &pkt->peer);
	return !original || !(original->state & LB_CT_ACK);
}

#endif
