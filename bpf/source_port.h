/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The source port of a new flow. Inserting the reply's entry reserves it, or fails: it is taken. */
#ifndef LB_SOURCE_PORT_H
#define LB_SOURCE_PORT_H

#include "conntrack.h"
#include "flow_timeout.h"
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
	if (!*old && reply->proto != IPPROTO_UDP)
		*old = lb_conntrack.lookup(reply);
	if (*old)
		return -1;
	if (!lb_ct_short.insert(reply, entry))
		return 0;
	*old = lb_ct_short.lookup(reply);
	return -1;
}

/* Fills reply->dport. Returns 0 if the entry was inserted; else old, if any, may be taken over. */
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

/*
 * Returns 0 if the client's port was free; otherwise old, if not NULL, may be taken over: it has
 * ended or is the same flow.
 */
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

/* Deletes the flow that has the reply's tuple, and inserts the entry. Returns 0 on success. */
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

#endif
