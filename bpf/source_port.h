/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The source port of a new flow. Inserting the reply's entry reserves it; fails if it is taken. */
#ifndef LB_SOURCE_PORT_H
#define LB_SOURCE_PORT_H

#include "conntrack.h"
#include "flow_record.h"
#include "flow_timeout.h"
#include "listener.h"
#include "maps.h"
#include "packet.h"

/* Host byte order. Uniformly random over both ranges, like kube-proxy's --random-fully. */
static __always_inline __u16 lb_source_port_random(const struct lb_settings *settings)
{
	__u32 first = settings->snat_ports[0].last - settings->snat_ports[0].first + 1;
	__u32 second = settings->snat_ports[1].last - settings->snat_ports[1].first + 1;
	__u32 n = bpf_get_prandom_u32() % (first + second);

	if (n < first)
		return settings->snat_ports[0].first + n;
	return settings->snat_ports[1].first + n - first;
}

/*
 * Inserts the entry under the reply's tuple if it is free, and returns 0; otherwise old is the
 * entry that has it, or NULL. A failed insert costs ten times as much as a lookup: crowded says
 * that a lookup in lb_ct_short first is worth it.
 */
static __always_inline int lb_source_port_claim(struct lb_tuple *reply, struct lb_conntrack *entry,
						struct lb_conntrack **old, int crowded)
{
	*old = crowded ? lb_ct_short.lookup(reply) : NULL;
	if (!*old)
		*old = lb_conntrack.lookup(reply);
	if (*old)
		return -1;
	if (!lb_conntrack_insert(reply, entry, 0))
		return 0;
	*old = lb_ct_short.lookup(reply);
	return -1;
}

/* Whether a process of this node uses the port towards the backend. ctx: NULL at XDP. */
static __always_inline int lb_source_port_is_of_socket(void *ctx, const struct lb_tuple *reply,
						       const struct lb_settings *settings)
{
	return ctx && settings->flags & LB_SETTING_SHARED_PORTS && lb_has_socket(ctx, reply);
}

/* Fills reply->dport. Returns 0 if the entry was inserted; else old, if any, may be replaced. */
static __always_inline int lb_source_port_pick(void *ctx, struct lb_packet *pkt,
					       struct lb_tuple *reply, struct lb_conntrack *entry,
					       struct lb_conntrack **old,
					       const struct lb_settings *settings)
{
	__u64 now = entry->created;

	for (int i = 0; i < LB_SNAT_ATTEMPTS; i++) {
		reply->dport = bpf_htons(lb_source_port_random(settings));
		if (lb_source_port_is_of_socket(ctx, reply, settings))
			continue;
		if (!lb_source_port_claim(reply, entry, old, i > 0))
			return 0;
		if (*old && lb_conntrack_has_closed(*old, now, i < LB_SNAT_CHOOSY_ATTEMPTS))
			return -1;
		if (*old && i >= LB_SNAT_ATTEMPTS - LB_SNAT_LAST_RESORTS &&
		    lb_conntrack_is_abandoned(pkt, reply, *old, now))
			return -1;
	}
	*old = NULL;
	return -1;
}

/*
 * Returns 0 if the client's port was free; otherwise old, if not NULL, may be replaced: it has
 * ended or is the same flow.
 */
static __always_inline int lb_source_port_keep(struct lb_tuple *reply, struct lb_conntrack *entry,
					       struct lb_conntrack **old)
{
	if (!lb_source_port_claim(reply, entry, old, 0))
		return 0;
	if (*old && !lb_tuple_is_equal(&(*old)->to, &entry->to) &&
	    !lb_conntrack_has_closed(*old, entry->created, 0))
		*old = NULL;
	return -1;
}

/* Deletes the flow that has the reply's tuple, and inserts the entry. Returns 0 on success. */
static __always_inline int lb_source_port_take_over(struct lb_packet *pkt, struct lb_tuple *reply,
						    const struct lb_conntrack *old,
						    struct lb_conntrack *entry)
{
	int is_established = lb_ct_state(old) & LB_CT_ESTABLISHED;

	if (lb_conntrack_other(reply, old, &pkt->reverse, 0))
		lb_conntrack_delete(&pkt->reverse, is_established, 0);
	lb_conntrack_delete(reply, is_established, 0);
	return lb_conntrack_insert(reply, entry, 0);
}

/* Like lb_source_port_keep(), for UDP: may_take says whether the flow with the port is over. */
static __always_inline int lb_source_port_keep_udp(struct lb_packet *pkt, struct lb_tuple *reply,
						   struct lb_conntrack *entry, int *may_take,
						   const struct lb_settings *settings)
{
	struct lb_conntrack *old = lb_ct_stream.lookup(reply);

	if (!old && !lb_conntrack_insert(reply, entry, 1))
		return 0;
	if (!old)
		old = lb_ct_udp.lookup(reply);
	if (old && (lb_tuple_is_equal(&old->to, &entry->to) ||
		    lb_conntrack_silence(reply, old, &pkt->reverse, entry->created) >=
			    lb_conntrack_udp_timeout(settings, old)))
		*may_take = 1;
	return -1;
}

/*
 * How long the flow in lb_ct_udp with the reply's tuple has been silent. 0 if there is none, -1 if
 * its port may not be taken because a packet came a moment ago.
 */
static __always_inline __s64 lb_source_port_silence(struct lb_packet *pkt, struct lb_tuple *reply,
						    __u64 now)
{
	struct lb_conntrack *old = lb_ct_udp.lookup(reply);
	struct lb_conntrack *original;
	__u64 last_seen;

	if (!old)
		return 0;
	last_seen = old->last_seen;
	lb_tuple_reverse(&pkt->reverse, &old->to);
	original = lb_ct_udp.lookup(&pkt->reverse);
	if (original && (__s64)(original->last_seen - last_seen) > 0)
		last_seen = original->last_seen;
	return (__s64)(now - last_seen) > (__s64)LB_UDP_RECENT ? now - last_seen : -1;
}

/*
 * Like lb_source_port_pick(). If ports are scarce, a flow that is not a stream loses its port:
 * among those tried, the one that has been silent longest. best is in a map, or the verifier would
 * explore each attempt for everything it knows about earlier ones.
 */
static __always_inline int lb_source_port_pick_udp(void *ctx, struct lb_packet *pkt,
						   struct lb_tuple *reply,
						   struct lb_conntrack *entry, int *may_take,
						   const struct lb_settings *settings)
{
	struct lb_silent_port *best = LB_SCRATCH(silent_port);
	__s64 silence;

	if (!best)
		return -1;
	best->silence = 0;
	for (int i = 0; i < LB_SNAT_ATTEMPTS; i++) {
		reply->dport = bpf_htons(lb_source_port_random(settings));
		if (lb_ct_stream.lookup(reply) || lb_source_port_is_of_socket(ctx, reply, settings))
			continue;
		silence = i ? lb_source_port_silence(pkt, reply, entry->created) : 0;
		if (!silence && !lb_conntrack_insert(reply, entry, 1))
			return 0;
		if (silence <= best->silence)
			continue;
		best->silence = silence;
		best->port = reply->dport;
	}
	reply->dport = best->port;
	*may_take = best->silence > 0;
	return -1;
}

/* Deletes the UDP flow that has the reply's tuple, and inserts the entry. Returns 0 on success. */
static __always_inline int lb_source_port_take_over_udp(struct lb_packet *pkt,
							struct lb_tuple *reply,
							struct lb_conntrack *entry)
{
	struct lb_conntrack *old = lb_conntrack_lookup_udp(reply);
	struct lb_conntrack *original;

	original = old ? lb_conntrack_other(reply, old, &pkt->reverse, 1) : NULL;
	if (original) {
		lb_flow_end(pkt, old, original,
			    old->state & LB_CT_ACK ? LB_END_TIMED_OUT : LB_END_NO_ANSWER);
		lb_conntrack_delete(&pkt->reverse, 0, 1);
	}
	lb_conntrack_delete(reply, 0, 1);
	return lb_conntrack_insert(reply, entry, 1);
}

#endif
