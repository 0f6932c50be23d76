/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Both entries of a new flow, and its source port. The reply's tuple is the reservation: inserting
 * it fails when another flow has it.
 */
#ifndef LB_SNAT_H
#define LB_SNAT_H

#include "conntrack.h"
#include "filter.h"
#include "maps.h"
#include "parse.h"
#include "verdict.h"

/* Host byte order; uniformly random over both ranges, fully random as kube-proxy's masquerade. */
static __always_inline __u16 lb_source_port_random(const struct lb_settings *settings)
{
	__u32 first = settings->snat_ports[0].last - settings->snat_ports[0].first + 1;
	__u32 second = settings->snat_ports[1].last - settings->snat_ports[1].first + 1;
	__u32 n = bpf_get_prandom_u32() % (first + second);

	if (n < first)
		return settings->snat_ports[0].first + n;
	return settings->snat_ports[1].first + n - first;
}

/* How long a handshake may take whose port others need. */
#define LB_HANDSHAKE (3 * LB_SECOND)

/*
 * Gives the reply tuple to the entry, if nobody has it. Returns 0 when that worked; else old is who
 * has it, or NULL. Inserting fails where an entry is, so lb_ct_short need not be asked before; where
 * that is likely, crowded, it is asked, because an insert that fails costs ten times as much.
 */
static __always_inline int lb_source_port_claim(struct lb_tuple *reply, struct lb_conntrack *entry,
						struct lb_conntrack **old, int crowded)
{
	*old = crowded ? lb_ct_short.lookup(reply) : NULL;
	if (!*old && reply->proto != IPPROTO_UDP)
		*old = lb_conntrack.lookup(reply);
	if (*old)
		return -1;
	if (!lb_ct_short.insert(reply, entry))
		return 0;
	*old = lb_ct_short.lookup(reply);
	return -1;
}

/* How long a pod may have a closed connection in TIME_WAIT, where a new one is not welcome. */
#define LB_TIME_WAIT (60 * LB_SECOND)

/*
 * Whether the flow is over; with UDP, whether it was not answered within its timeout.
 * choosy: whether there may be better ones than one that has only just ended.
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

/* Whether the flow is a handshake that the backend or the client has not gone on with in time. */
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

/* Fills reply->dport. Returns 0 when the entry has the tuple; else old, if any, may be taken over. */
static __always_inline int lb_source_port_pick(struct lb_packet *pkt, struct lb_tuple *reply,
					       struct lb_conntrack *entry,
					       struct lb_conntrack **old,
					       const struct lb_settings *settings)
{
	__u64 now = entry->created;

	for (int i = 0; i < LB_SNAT_ATTEMPTS; i++) {
		reply->dport = bpf_htons(lb_source_port_random(settings));
		if (!lb_source_port_claim(reply, entry, old, i > 0))
			return 0;
		if (*old &&
		    lb_conntrack_has_ended(reply, *old, settings, now, i < LB_SNAT_CHOOSY_ATTEMPTS))
			return -1;
		if (*old && i >= LB_SNAT_ATTEMPTS - LB_SNAT_LAST_RESORTS &&
		    lb_conntrack_is_abandoned(pkt, reply, *old, now))
			return -1;
	}
	*old = NULL;
	return -1;
}

/* Whether the client's port is free, or old may be taken over: it has ended or is the same flow. */
static __always_inline int lb_source_port_keep(struct lb_tuple *reply, struct lb_conntrack *entry,
					       struct lb_conntrack **old,
					       const struct lb_settings *settings)
{
	if (!lb_source_port_claim(reply, entry, old, 0))
		return 0;
	if (*old && !lb_tuple_is_equal(&(*old)->to, &entry->to) &&
	    !lb_conntrack_has_ended(reply, *old, settings, entry->created, 0))
		*old = NULL;
	return -1;
}

/* Forgets the flow that has the reply tuple, and gives it to the entry. Returns 0 on success. */
static __always_inline int lb_source_port_take_over(struct lb_packet *pkt, struct lb_tuple *reply,
						    const struct lb_conntrack *old,
						    struct lb_conntrack *entry)
{
	int is_established = lb_ct_state(old) & LB_CT_ESTABLISHED;

	if (lb_conntrack_peer(reply, old, &pkt->peer))
		lb_conntrack_delete(&pkt->peer, is_established);
	lb_conntrack_delete(reply, is_established);
	return lb_ct_short.insert(reply, entry);
}

/*
 * Fills reply->dport and gives the tuple to the entry. Returns 0 when that worked. What is not
 * masqueraded keeps the client's port, unless that has a flow to the backend already.
 */
static __always_inline int lb_snat_reserve(struct lb_packet *pkt, const struct lb_flow *flow,
					   struct lb_tuple *reply, struct lb_conntrack *entry,
					   const struct lb_settings *settings)
{
	struct lb_conntrack *old = NULL;

	if (!(flow->flags & LB_CT_SNAT) && !lb_source_port_keep(reply, entry, &old, settings))
		return 0;
	if (!old && !lb_source_port_pick(pkt, reply, entry, &old, settings))
		return 0;
	return old ? lb_source_port_take_over(pkt, reply, old, entry) : -1;
}

/*
 * Makes both entries of the flow and fills flow->to.sport: another port when it is masqueraded, or
 * when the client has a flow from this port to the backend already, by another frontend. The reply
 * comes first: an original without its reply would send packets whose answers nobody reverses.
 */
static __always_inline int lb_conntrack_create(struct lb_packet *pkt, struct lb_flow *flow)
{
	struct lb_settings *settings;
	struct lb_conntrack *entry;
	struct lb_tuple reply;
	int zero = 0;

	settings = lb_settings.lookup(&zero);
	entry = lb_ct_scratch.lookup(&zero);
	if (!settings || !entry)
		return -LB_DROP_CONNTRACK_FULL;
	lb_tuple_reverse(&reply, &flow->to);
	lb_conntrack_fill(entry, flow, lb_now());
	lb_conntrack_fill_reply(entry, flow, &pkt->tuple);
	if (lb_snat_reserve(pkt, flow, &reply, entry, settings))
		return -LB_DROP_SNAT_PORTS;
	flow->to.sport = reply.dport;
	lb_conntrack_fill(entry, flow, entry->created);
	entry->state = LB_CT_SYN;
	entry->packets = pkt->segs;
	entry->bytes = lb_payload(pkt);
	if (lb_ct_short.update(&pkt->tuple, entry)) {
		lb_ct_short.delete(&reply);
		return -LB_DROP_CONNTRACK_FULL;
	}
	lb_filter_add(&reply, flow->reply_hook);
	return LB_NEXT;
}

#endif
