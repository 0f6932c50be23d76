/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* SNAT: both entries of a new flow, with its source port (source_port.h). */
#ifndef LB_SNAT_H
#define LB_SNAT_H

#include "conntrack.h"
#include "ct_sequence.h"
#include "filter.h"
#include "flow_record.h"
#include "maps.h"
#include "packet.h"
#include "source_port.h"
#include "tuple.h"
#include "verdict.h"

/*
 * Fills reply->dport and inserts the reply's entry; returns 0 on success. A flow that is not
 * masqueraded keeps the client's port, unless another flow to the backend uses it.
 */
static __always_inline int lb_snat_reserve(void *ctx, struct lb_packet *pkt,
					   const struct lb_flow *flow, struct lb_tuple *reply,
					   struct lb_conntrack *entry,
					   const struct lb_settings *settings)
{
	struct lb_conntrack *old = NULL;

	if (!(flow->flags & LB_CT_SNAT) && !lb_source_port_keep(reply, entry, &old))
		return 0;
	if (!old && !lb_source_port_pick(ctx, pkt, reply, entry, &old, settings))
		return 0;
	return old ? lb_source_port_take_over(pkt, reply, old, entry) : -1;
}

static __always_inline int lb_snat_reserve_udp(void *ctx, struct lb_packet *pkt,
					       const struct lb_flow *flow, struct lb_tuple *reply,
					       struct lb_conntrack *entry,
					       const struct lb_settings *settings)
{
	int may_take = 0;

	if (!(flow->flags & LB_CT_SNAT) &&
	    !lb_source_port_keep_udp(pkt, reply, entry, &may_take, settings))
		return 0;
	if (!may_take && !lb_source_port_pick_udp(ctx, pkt, reply, entry, &may_take, settings))
		return 0;
	return may_take ? lb_source_port_take_over_udp(pkt, reply, entry) : -1;
}

/*
 * Creates both entries of the flow, records its start and fills flow->to.sport. The port changes if the flow is
 * masqueraded, or if the client already has a flow from this port to the backend through another
 * frontend. The reply's entry is inserted first: with only the original's, nothing would reverse
 * replies.
 */
static __always_inline int lb_conntrack_create(void *ctx, struct lb_packet *pkt,
					       struct lb_flow *flow)
{
	struct lb_settings *settings = lb_settings_get();
	struct lb_conntrack *entry = LB_SCRATCH(entry);
	struct lb_tuple reply;
	int is_udp;

	if (!settings || !entry)
		return -LB_DROP_CONNTRACK_FULL;
	lb_tuple_reverse(&reply, &flow->to);
	lb_conntrack_fill(entry, flow, pkt->now);
	lb_conntrack_fill_reply(entry, flow, &pkt->tuple);
	is_udp = reply.proto == IPPROTO_UDP;
	if (is_udp ? lb_snat_reserve_udp(ctx, pkt, flow, &reply, entry, settings) :
		     lb_snat_reserve(ctx, pkt, flow, &reply, entry, settings))
		return -LB_DROP_SNAT_PORTS;
	flow->to.sport = reply.dport;
	lb_conntrack_fill(entry, flow, entry->created);
	entry->state = LB_CT_SYN;
	entry->sent_end = reply.proto == IPPROTO_TCP ? lb_tcp_end(pkt) : 0;
	entry->packets = pkt->segs;
	entry->bytes = lb_payload(pkt);
	if (lb_conntrack_update(&pkt->tuple, entry, is_udp)) {
		lb_conntrack_delete(&reply, 0, is_udp);
		return -LB_DROP_CONNTRACK_FULL;
	}
	lb_reply_filter_add(&reply, flow->reply_hook, entry->created);
	lb_flow_record(LB_FLOW_START, &pkt->tuple, entry, NULL, 0);
	return LB_NEXT;
}

#endif
