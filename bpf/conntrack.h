/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The flows of the packet path: two entries each, one per direction, keyed by the tuple a packet
 * has where it is looked up. A flow begins in lb_ct_short and moves to lb_conntrack once both sides
 * of a TCP handshake were seen. It goes when both FINs are acknowledged; a reset moves it back.
 */
#ifndef LB_CONNTRACK_H
#define LB_CONNTRACK_H

#include "backend.h"
#include "maps.h"
#include "packet.h"

#define LB_SECOND 1000000000ULL

/* CLOCK_MONOTONIC in nanoseconds, to the tick where the kernel has that (5.11): it costs less. */
static __always_inline __u64 lb_now(void)
{
#if LB_HAS_COARSE_CLOCK
	return bpf_ktime_get_coarse_ns();
#else
	return bpf_ktime_get_ns();
#endif
}

/* A new flow as decided: what its packets become and where its replies are reversed. */
struct lb_flow {
	struct lb_tuple to;
	__u32 service;
	__u32 backend;
	__u32 generation;
	__u32 ifindex;
	__u8 reply_hook;
	__u8 hook;
	__u8 flags;
};

static __always_inline int lb_ct_is_syn(const struct lb_packet *pkt)
{
	return pkt->tuple.proto == IPPROTO_TCP &&
	       (pkt->tcp_flags & (LB_TCP_SYN | LB_TCP_ACK | LB_TCP_RST)) == LB_TCP_SYN;
}

static __always_inline struct lb_conntrack *lb_conntrack_lookup(struct lb_tuple *key)
{
	struct lb_conntrack *entry;

	if (key->proto == IPPROTO_UDP)
		return lb_ct_short.lookup(key);
	entry = lb_conntrack.lookup(key);
	return entry ? entry : lb_ct_short.lookup(key);
}

/*
 * The entry of the other direction, whose key follows from what this one becomes. NULL when it is
 * gone, or belongs to a later flow that has begun with the same key.
 */
static __always_inline struct lb_conntrack *lb_conntrack_peer(const struct lb_tuple *key,
							      const struct lb_conntrack *entry,
							      struct lb_tuple *peer_key)
{
	struct lb_conntrack *peer;

	lb_tuple_reverse(peer_key, &entry->to);
	peer = lb_conntrack_lookup(peer_key);
	return peer && lb_tuple_is_reverse(&peer->to, key) ? peer : NULL;
}

/* Whether the timeout of UDP has passed since the last packet of either direction. */
static __always_inline int lb_conntrack_is_idle(const struct lb_tuple *key,
						const struct lb_conntrack *entry,
						struct lb_tuple *peer_key)
{
	struct lb_settings *settings;
	struct lb_conntrack *peer;
	__s64 oldest;
	int zero = 0;

	settings = lb_settings.lookup(&zero);
	if (!settings)
		return 0;
	oldest = lb_now() - settings->udp_timeout * LB_SECOND;
	if ((__s64)entry->last_seen >= oldest)
		return 0;
	peer = lb_conntrack_peer(key, entry, peer_key);
	return !peer || (__s64)peer->last_seen < oldest;
}

static __always_inline int lb_conntrack_is_stale_udp(struct lb_packet *pkt,
						     const struct lb_conntrack *entry)
{
	if (pkt->tuple.proto != IPPROTO_UDP)
		return 0;
	if (entry->direction == LB_DIR_ORIGINAL &&
	    !lb_backend_usable(entry->backend, entry->generation))
		return 1;
	return lb_conntrack_is_idle(&pkt->tuple, entry, &pkt->peer);
}

static __always_inline void lb_conntrack_delete(struct lb_tuple *key, int is_established)
{
	if (is_established)
		lb_conntrack.delete(key);
	else
		lb_ct_short.delete(key);
}

/* Deletes both directions; the other one must be known to be this flow's. */
static __always_inline void lb_conntrack_remove(struct lb_packet *pkt,
						const struct lb_conntrack *entry)
{
	int is_established = entry->state & LB_CT_ESTABLISHED;

	lb_tuple_reverse(&pkt->peer, &entry->to);
	lb_conntrack_delete(&pkt->peer, is_established);
	lb_conntrack_delete(&pkt->tuple, is_established);
}

/*
 * A backend accepts a connection that did not open here: the client came to it directly, from the
 * port of a flow that has ended. That flow is forgotten, or its entry would claim the new one.
 */
static __always_inline int lb_conntrack_is_foreign(struct lb_packet *pkt,
						   const struct lb_conntrack *entry)
{
	__u8 accepts = LB_TCP_SYN | LB_TCP_ACK;

	if (pkt->tuple.proto != IPPROTO_TCP || entry->direction != LB_DIR_REPLY ||
	    !(entry->state & LB_CT_CLOSED) || (pkt->tcp_flags & accepts) != accepts)
		return 0;
	if (lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer))
		lb_conntrack_remove(pkt, entry);
	return 1;
}

/* Whether the entry still decides for this packet, or the packet opens a new flow in its place. */
static __always_inline int lb_conntrack_is_current(struct lb_packet *pkt,
						   const struct lb_conntrack *entry)
{
	if (lb_conntrack_is_stale_udp(pkt, entry) || lb_conntrack_is_foreign(pkt, entry))
		return 0;
	if (!lb_ct_is_syn(pkt) || entry->direction != LB_DIR_ORIGINAL)
		return 1;
	return !(entry->state & LB_CT_CLOSED) &&
	       lb_backend_usable(entry->backend, entry->generation) != NULL;
}

static __always_inline void lb_conntrack_fill(struct lb_conntrack *entry,
					      const struct lb_flow *flow, __u64 now)
{
	entry->to = flow->to;
	entry->created = now;
	entry->last_seen = now;
	entry->packets = 0;
	entry->bytes = 0;
	entry->service = flow->service;
	entry->backend = flow->backend;
	entry->generation = flow->generation;
	entry->ifindex = 0;
	entry->direction = LB_DIR_ORIGINAL;
	entry->hook = flow->hook;
	entry->state = 0;
	entry->flags = flow->flags;
	entry->fin_end = 0;
}

/* The original's entry turned into the reply's, which becomes the reverse of the packet's tuple. */
static __always_inline void lb_conntrack_fill_reply(struct lb_conntrack *entry,
						    const struct lb_flow *flow,
						    const struct lb_tuple *original)
{
	lb_tuple_reverse(&entry->to, original);
	entry->ifindex = flow->ifindex;
	entry->direction = LB_DIR_REPLY;
	entry->hook = flow->reply_hook;
}

#endif
