/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The flows of the packet path: two entries each, one per direction, keyed by the tuple a packet
 * has where it is looked up. A flow begins in lb_ct_short, moves to lb_conntrack once both sides
 * of a TCP handshake were seen, and back when it has ended.
 */
#ifndef LB_CONNTRACK_H
#define LB_CONNTRACK_H

#define LB_SECOND 1000000000ULL

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
	oldest = bpf_ktime_get_ns() - settings->udp_timeout * LB_SECOND;
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

/* Whether the entry still decides for this packet, or the packet opens a new flow in its place. */
static __always_inline int lb_conntrack_is_current(struct lb_packet *pkt,
						   const struct lb_conntrack *entry)
{
	if (lb_conntrack_is_stale_udp(pkt, entry))
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
	entry->pad = 0;
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

static __always_inline void lb_conntrack_close(struct lb_packet *pkt, struct lb_conntrack *entry,
					       int must_have_fin)
{
	struct lb_conntrack *other = lb_conntrack_peer(&pkt->tuple, entry, &pkt->peer);

	if (must_have_fin && (!other || !(other->state & LB_CT_FIN)))
		return;
	if (other)
		lb_conntrack_close_one(&pkt->peer, other);
	lb_conntrack_close_one(&pkt->tuple, entry);
}

static __always_inline void lb_conntrack_track_tcp(struct lb_packet *pkt,
						   struct lb_conntrack *entry)
{
	if (pkt->tcp_flags & LB_TCP_SYN)
		entry->state |= LB_CT_SYN;
	else if (pkt->tcp_flags & LB_TCP_ACK)
		entry->state |= LB_CT_ACK;
	if (pkt->tcp_flags & LB_TCP_RST) {
		lb_conntrack_close(pkt, entry, 0);
	} else if (pkt->tcp_flags & LB_TCP_FIN) {
		entry->state |= LB_CT_FIN;
		lb_conntrack_close(pkt, entry, 1);
	} else if (entry->direction == LB_DIR_ORIGINAL && entry->state & LB_CT_ACK &&
		   !(entry->state & (LB_CT_ESTABLISHED | LB_CT_CLOSED))) {
		lb_conntrack_promote(pkt, entry);
	}
}

/* Counts the packet and moves the state on. May move the entry: it is not to be used after. */
static __always_inline void lb_conntrack_track(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	entry->last_seen = bpf_ktime_get_ns();
	__sync_fetch_and_add(&entry->packets, 1);
	__sync_fetch_and_add(&entry->bytes, pkt->len);
	if (pkt->tuple.proto == IPPROTO_TCP)
		lb_conntrack_track_tcp(pkt, entry);
}

#endif
