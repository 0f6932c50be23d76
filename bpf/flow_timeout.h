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

/* A pod may have a closed connection in TIME_WAIT for this long, and not accept a new one. */
#define LB_TIME_WAIT (60 * LB_SECOND)

/* A UDP flow keeps its port for this long after its last packet even if no other port is free. */
#define LB_UDP_RECENT (2 * LB_SECOND)

/* The timeout of a UDP flow, which is longer for a stream. */
static __always_inline __s64 lb_conntrack_udp_timeout(const struct lb_settings *settings,
						      const struct lb_conntrack *entry)
{
	int is_stream = lb_ct_state(entry) & LB_CT_ESTABLISHED;

	return (is_stream ? settings->udp_stream_timeout : settings->udp_timeout) * LB_SECOND;
}

/* Since the last packet in either direction, for UDP. Negative if another NAT uses the tuple. */
static __always_inline __s64 lb_conntrack_silence(const struct lb_tuple *key,
						  const struct lb_conntrack *entry,
						  struct lb_tuple *other_key, __u64 now)
{
	struct lb_conntrack *other = lb_conntrack_other(key, entry, other_key, 1);
	__s64 silence = now - entry->last_seen;
	__s64 silence_of_other = other ? now - other->last_seen : silence;

	return silence_of_other < silence ? silence_of_other : silence;
}

/* Whether the UDP timeout has passed since the last packet in either direction. */
static __always_inline int lb_conntrack_is_idle(struct lb_packet *pkt,
						const struct lb_conntrack *entry)
{
	struct lb_settings *settings = lb_settings_get();
	__s64 limit;

	if (!settings)
		return 0;
	limit = lb_conntrack_udp_timeout(settings, entry);
	if ((__s64)(pkt->now - entry->last_seen) <= limit)
		return 0;
	return lb_conntrack_silence(&pkt->tuple, entry, &pkt->reverse, pkt->now) > limit;
}

/*
 * Whether a TCP or SCTP flow is over, so that another may have its port. choosy: not if it ended
 * only recently.
 */
static __always_inline int lb_conntrack_has_closed(const struct lb_conntrack *old, __u64 now,
						   int choosy)
{
	return lb_ct_state(old) & LB_CT_CLOSED &&
	       (!choosy || (__s64)(now - old->last_seen) >= (__s64)LB_TIME_WAIT);
}

/* Whether neither side completed the handshake within LB_HANDSHAKE. */
static __always_inline int lb_conntrack_is_abandoned(struct lb_packet *pkt,
						     const struct lb_tuple *reply,
						     const struct lb_conntrack *old, __u64 now)
{
	struct lb_conntrack *original;

	if (lb_ct_state(old) & (LB_CT_ESTABLISHED | LB_CT_ACK) ||
	    (__s64)(now - old->created) < (__s64)LB_HANDSHAKE)
		return 0;
	if (!(old->state & LB_CT_SYN))
		return 1;
	original = lb_conntrack_other(reply, old, &pkt->reverse, 0);
	return !original || !(original->state & LB_CT_ACK);
}

#endif
