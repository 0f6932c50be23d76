/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Conntrack entries of flows at tc: two per flow, one for each direction, keyed by the tuple of a
 * packet at the hook that looks it up. A flow starts in lb_ct_short and moves to lb_conntrack when
 * both sides of its handshake have been seen. It is deleted when both FINs are acknowledged; a
 * reset moves it back. SCTP maps to TCP: INIT is a SYN, INIT ACK a SYN ACK, ABORT and SHUTDOWN
 * COMPLETE are resets.
 */
#ifndef LB_CONNTRACK_H
#define LB_CONNTRACK_H

#include "ejection.h"
#include "maps.h"
#include "packet.h"
#include "tuple.h"

/* Instead of an error: another packet of the flow has moved or deleted the entry meanwhile. */
#define LB_MOVED 1

/* A SYN of TCP that an endpoint may accept, or an INIT of SCTP. */
static __always_inline int lb_ct_is_syn(const struct lb_packet *pkt)
{
	return (pkt->tcp_flags & (LB_TCP_SYN | LB_TCP_ACK | LB_TCP_RST | LB_TCP_FIN)) == LB_TCP_SYN;
}

/* Whether a packet may start an unknown flow. */
static __always_inline int lb_is_opening(const struct lb_packet *pkt)
{
	if (LB_HAS_DSR && pkt->routing & LB_IS_ERROR)
		return 0;
	return pkt->tuple.proto == IPPROTO_UDP || lb_ct_is_syn(pkt);
}

static __always_inline __u8 lb_ct_state(const struct lb_conntrack *entry)
{
	return entry->state | entry->other_state;
}

static __always_inline int lb_has_setting(__u32 flag)
{
	struct lb_settings *settings = lb_settings_get();

	return settings && settings->flags & flag;
}

/* A stream is inserted before it is deleted from lb_ct_udp: this lookup order misses neither. */
static __always_inline struct lb_conntrack *lb_conntrack_lookup_udp(struct lb_tuple *key)
{
	struct lb_conntrack *entry = lb_ct_udp.lookup(key);

	return entry ? entry : lb_ct_stream.lookup(key);
}

/* TCP and SCTP. */
static __always_inline struct lb_conntrack *lb_conntrack_lookup_connection(struct lb_tuple *key)
{
	struct lb_conntrack *entry = lb_conntrack.lookup(key);

	return entry ? entry : lb_ct_short.lookup(key);
}

/*
 * A flow whose answers this node does not see (dsr.h), at the only hook that has such flows. It is
 * inserted before it is deleted where it began.
 */
static __always_inline struct lb_conntrack *lb_conntrack_lookup_dsr(struct lb_tuple *key, int hook)
{
	return LB_HAS_DSR && hook == LB_HOOK_HOST_INGRESS ? lb_ct_dsr.lookup(key) : NULL;
}

/* is_udp is a constant wherever the verifier would otherwise explore both sets of tables. */
static __always_inline struct lb_conntrack *lb_conntrack_lookup(struct lb_tuple *key, int is_udp)
{
	return is_udp ? lb_conntrack_lookup_udp(key) : lb_conntrack_lookup_connection(key);
}

/* Copies the entry to the table of established flows or streams. */
static __always_inline int lb_conntrack_settle(struct lb_tuple *key, struct lb_conntrack *entry,
					       int is_udp)
{
	return is_udp ? lb_ct_stream.update(key, entry) : lb_conntrack.update(key, entry);
}

/*
 * The entry of the other direction, whose key is the reverse of entry->to. NULL if it was deleted,
 * or if it belongs to a later flow with the same key.
 */
static __always_inline struct lb_conntrack *lb_conntrack_other(const struct lb_tuple *key,
							       const struct lb_conntrack *entry,
							       struct lb_tuple *other_key,
							       int is_udp)
{
	struct lb_conntrack *other;

	lb_tuple_reverse(other_key, &entry->to);
	other = lb_conntrack_lookup(other_key, is_udp);
	return other && lb_tuple_is_reverse(&other->to, key) ? other : NULL;
}

/*
 * A copy to be changed and stored elsewhere; NULL if there is none. Other packets may delete the entry
 * at any time, and the kernel gives its memory to the next flow at once: whoever stores the copy asks
 * after it was made whether the key still has the entry.
 */
static __always_inline struct lb_conntrack *lb_conntrack_copy(const struct lb_conntrack *entry)
{
	struct lb_conntrack *copy = LB_SCRATCH(entry);

	if (copy)
		*copy = *entry;
	return copy;
}

/* Whether the key still has this entry in the table of opening flows. */
static __always_inline int lb_conntrack_is_opening(struct lb_tuple *key,
						   const struct lb_conntrack *entry, int is_udp)
{
	return (is_udp ? lb_ct_udp.lookup(key) : lb_ct_short.lookup(key)) == entry;
}

/* Whether the key still has this entry in the table of established flows or streams. */
static __always_inline int lb_conntrack_is_settled(struct lb_tuple *key,
						   const struct lb_conntrack *entry, int is_udp)
{
	return (is_udp ? lb_ct_stream.lookup(key) : lb_conntrack.lookup(key)) == entry;
}

static __always_inline int lb_conntrack_delete_settled(struct lb_tuple *key, int is_udp)
{
	return is_udp ? lb_ct_stream.delete(key) : lb_conntrack.delete(key);
}

static __always_inline int lb_conntrack_delete_opening(struct lb_tuple *key, int is_udp)
{
	return is_udp ? lb_ct_udp.delete(key) : lb_ct_short.delete(key);
}

/* The client of a flow, for ejection. entry: that of the original direction. */
static __always_inline void lb_conntrack_client(const struct lb_conntrack *entry,
						const struct lb_addr *addr,
						struct lb_client_key *client)
{
	lb_client_fill(client, entry->service, addr, entry->hook);
}

/* Inserts the entry of a new flow, or replaces that of an earlier one. */
static __always_inline int lb_conntrack_update(struct lb_tuple *key, struct lb_conntrack *entry,
					       int is_udp)
{
	if (lb_has_setting(LB_SETTING_DIVERT) && !lb_conntrack_settle(key, entry, is_udp)) {
		lb_conntrack_delete_opening(key, is_udp);
		return 0;
	}
	return is_udp ? lb_ct_udp.update(key, entry) : lb_ct_short.update(key, entry);
}

/*
 * Inserts the entry of a new flow and returns 0, unless an opening flow has the key. The caller has
 * already looked among settled flows.
 */
static __always_inline int lb_conntrack_insert(struct lb_tuple *key, struct lb_conntrack *entry,
					       int is_udp)
{
	if (lb_has_setting(LB_SETTING_DIVERT)) {
		if (is_udp ? lb_ct_udp.lookup(key) : lb_ct_short.lookup(key))
			return -1;
		if (!(is_udp ? lb_ct_stream.insert(key, entry) : lb_conntrack.insert(key, entry)))
			return 0;
	}
	return is_udp ? lb_ct_udp.insert(key, entry) : lb_ct_short.insert(key, entry);
}

/*
 * Returns 0 if the entry existed. Tries lb_conntrack or lb_ct_stream whatever the state is: an
 * entry left there would take precedence over a new flow, or keep a port.
 */
static __always_inline int lb_conntrack_delete(struct lb_tuple *key, int is_established, int is_udp)
{
	if (!is_established && !lb_conntrack_delete_opening(key, is_udp))
		return 0;
	return lb_conntrack_delete_settled(key, is_udp);
}

/*
 * Deletes both directions; the caller has checked that the other entry belongs to this flow.
 * Returns 0 if this call deleted the original entry: if two packets end a flow at the same time,
 * only one gets 0. TCP and SCTP.
 */
static __always_inline int lb_conntrack_remove(struct lb_packet *pkt,
					       const struct lb_conntrack *entry)
{
	int is_established = lb_ct_state(entry) & LB_CT_ESTABLISHED;
	int is_original = entry->direction == LB_DIR_ORIGINAL;
	int reverse, own;

	lb_tuple_reverse(&pkt->reverse, &entry->to);
	reverse = lb_conntrack_delete(&pkt->reverse, is_established, 0);
	own = lb_conntrack_delete(&pkt->tuple, is_established, 0);
	return is_original ? own : reverse;
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
	entry->serial = flow->serial;
	entry->ifindex = 0;
	entry->direction = LB_DIR_ORIGINAL;
	entry->hook = flow->hook;
	entry->state = 0;
	entry->flags = flow->flags;
	entry->sent_end = 0;
	entry->frontend = flow->frontend;
	entry->desc_flags = flow->desc_flags;
	entry->other_state = 0;
	entry->tried = flow->retry.tried;
}

/* Turns the original's entry into the reply's, whose tuple is the reverse of original. */
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
