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
#include "packet.h"
#include "verdict.h"

/* Host byte order; uniformly random over both ranges, fully random as kube-proxy's masquerade. */
static __always_inline __u16 lb_snat_random_port(const struct lb_settings *settings)
{
	__u32 first = settings->snat_ports[0].last - settings->snat_ports[0].first + 1;
	__u32 second = settings->snat_ports[1].last - settings->snat_ports[1].first + 1;
	__u32 n = bpf_get_prandom_u32() % (first + second);

	if (n < first)
		return settings->snat_ports[0].first + n;
	return settings->snat_ports[1].first + n - first;
}

/* Whether a live flow has this reply tuple; with UDP, one that was answered within its timeout. */
static __always_inline int lb_snat_is_taken(struct lb_tuple *reply,
					    const struct lb_settings *settings, __u64 now)
{
	struct lb_conntrack *old = lb_conntrack_lookup(reply);

	if (!old)
		return 0;
	if (reply->proto == IPPROTO_UDP)
		return (__s64)(now - old->last_seen) < (__s64)(settings->udp_timeout * LB_SECOND);
	return !(old->state & LB_CT_CLOSED);
}

/* Fills reply->dport. Returns 0 when a port was found. */
static __always_inline int lb_snat_pick(struct lb_tuple *reply, const struct lb_settings *settings,
					__u64 now)
{
	for (int i = 0; i < LB_SNAT_ATTEMPTS; i++) {
		reply->dport = bpf_htons(lb_snat_random_port(settings));
		if (!lb_snat_is_taken(reply, settings, now))
			return 0;
	}
	return -1;
}

/* Forgets the flow that had the reply tuple, if it has ended or is the same one. 0 if it is free. */
static __always_inline int lb_snat_free(struct lb_packet *pkt, struct lb_tuple *reply,
					const struct lb_conntrack *entry,
					const struct lb_settings *settings)
{
	struct lb_conntrack *old = lb_conntrack_lookup(reply);
	int is_established;

	if (!old)
		return 0;
	if (!lb_tuple_is_equal(&old->to, &entry->to) &&
	    lb_snat_is_taken(reply, settings, entry->created))
		return -1;
	is_established = old->state & LB_CT_ESTABLISHED;
	if (lb_conntrack_peer(reply, old, &pkt->peer))
		lb_conntrack_delete(&pkt->peer, is_established);
	lb_conntrack_delete(reply, is_established);
	return 0;
}

static __always_inline int lb_snat_reserve(struct lb_packet *pkt, const struct lb_flow *flow,
					   struct lb_tuple *reply, struct lb_conntrack *entry)
{
	struct lb_settings *settings;
	int zero = 0;

	settings = lb_settings.lookup(&zero);
	if (!settings)
		return -LB_DROP_SNAT_PORTS;
	if (flow->flags & LB_CT_SNAT || lb_snat_free(pkt, reply, entry, settings)) {
		if (lb_snat_pick(reply, settings, entry->created) ||
		    lb_snat_free(pkt, reply, entry, settings))
			return -LB_DROP_SNAT_PORTS;
	}
	return lb_ct_short.insert(reply, entry) ? -LB_DROP_SNAT_PORTS : LB_NEXT;
}

/*
 * Makes both entries of the flow and fills flow->to.sport: another port when it is masqueraded, or
 * when the client has a flow from this port to the backend already, by another frontend. The reply
 * comes first: an original without its reply would send packets whose answers nobody reverses.
 */
static __always_inline int lb_conntrack_create(struct lb_packet *pkt, struct lb_flow *flow)
{
	struct lb_conntrack *entry;
	struct lb_tuple reply;
	int verdict;
	int zero = 0;

	entry = lb_ct_scratch.lookup(&zero);
	if (!entry)
		return -LB_DROP_CONNTRACK_FULL;
	lb_tuple_reverse(&reply, &flow->to);
	lb_conntrack_fill(entry, flow, lb_now());
	lb_conntrack_fill_reply(entry, flow, &pkt->tuple);
	verdict = lb_snat_reserve(pkt, flow, &reply, entry);
	if (verdict)
		return verdict;
	flow->to.sport = reply.dport;
	lb_conntrack_fill(entry, flow, entry->created);
	entry->state = LB_CT_SYN;
	entry->packets = 1;
	entry->bytes = pkt->len;
	if (lb_ct_short.update(&pkt->tuple, entry)) {
		lb_ct_short.delete(&reply);
		return -LB_DROP_CONNTRACK_FULL;
	}
	lb_filter_add(&reply);
	return LB_NEXT;
}

#endif
