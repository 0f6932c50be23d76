/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * UDP that a pod sends directly to an endpoint, from a port from which it has also sent to a Service
 * with this endpoint: gossip that joins by a Service and goes on with the members, or two sockets with
 * the same port by chance. The endpoint's answers to both look alike; who asked last gets them. In
 * netfilter the later flow gets another source port.
 */
#ifndef LB_DIRECT_UDP_H
#define LB_DIRECT_UDP_H

#include "conntrack.h"
#include "filter.h"
#include "flow_record.h"
#include "packet.h"

/* Whether answers to the packet may be taken for those of a Service. */
static __always_inline int lb_direct_udp_may_be(const struct lb_summary *summary, int hook)
{
	return hook == LB_HOOK_POD_INGRESS && summary->proto == IPPROTO_UDP && summary->is_plain &&
	       lb_reply_filter_has(summary->daddr, summary->saddr, summary->dport, summary->sport,
				   LB_HOOK_POD_EGRESS);
}

/*
 * For a packet of a pod that passes: ends the flow to a Service whose answers would look like those to
 * this packet. Changes the tuple.
 */
static __always_inline void lb_direct_udp_sent(struct lb_packet *pkt)
{
	const struct lb_tuple *tuple = &pkt->tuple;
	struct lb_conntrack *reply, *original;
	int is_settled;

	if (tuple->proto != IPPROTO_UDP ||
	    !lb_reply_filter_has(tuple->daddr.word[3], tuple->saddr.word[3], tuple->dport,
				 tuple->sport, LB_HOOK_POD_EGRESS))
		return;
	lb_tuple_reverse(&pkt->reverse, &pkt->tuple);
	pkt->tuple = pkt->reverse;
	reply = lb_conntrack_lookup_udp(&pkt->tuple);
	if (!reply || reply->hook != LB_HOOK_POD_EGRESS || reply->flags & LB_CT_SNAT)
		return;
	original = lb_conntrack_other(&pkt->tuple, reply, &pkt->reverse, 1);
	is_settled = lb_ct_state(reply) & LB_CT_ESTABLISHED;
	if (original)
		lb_flow_end(pkt, reply, original, LB_END_REPLACED);
	lb_conntrack_delete(&pkt->tuple, is_settled, 1);
	if (lb_conntrack_delete(&pkt->reverse, is_settled, 1))
		lb_flow_end_cancel();
}

#endif
