/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Hairpin: a Service sends a pod's packet back to that pod. The pod must see another source
 * address, or it would answer itself directly and nothing would reverse the reply.
 */
#ifndef LB_HAIRPIN_H
#define LB_HAIRPIN_H

#include "addr.h"
#include "conntrack.h"
#include "forward.h"
#include "masquerade.h"

static __always_inline int lb_is_hairpin(const struct lb_packet *pkt, const struct lb_flow *flow)
{
	return lb_addr_is_equal(&flow->to.daddr, &pkt->tuple.saddr);
}

/* The pod sees the node's primary address. */
static __always_inline int lb_hairpin_masquerade(const struct lb_packet *pkt, struct lb_flow *flow)
{
	int verdict = lb_masquerade_to_local(pkt, flow);

	flow->flags |= LB_CT_HAIRPIN;
	return verdict;
}

/* Requests and replies leave by the pod's own device; both are translated at its ingress. */
static __always_inline int lb_hairpin_send(struct __sk_buff *skb, const struct lb_packet *pkt)
{
	return lb_return_to_sender(skb, pkt->l2, LB_HOOK_POD_INGRESS);
}

#endif
