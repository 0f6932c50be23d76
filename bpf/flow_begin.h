/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How a new flow begins, at tc and at XDP alike: its entries, counters and record. */
#ifndef LB_FLOW_BEGIN_H
#define LB_FLOW_BEGIN_H

#include "conntrack.h"
#include "counters.h"
#include "dsr.h"
#include "flow_record.h"
#include "limits.h"
#include "open_connections.h"
#include "packet.h"
#include "snat.h"
#include "verdict.h"

/* An empty one. NULL: never, but the verifier does not know. */
static __always_inline struct lb_flow *lb_flow_new(void)
{
	struct lb_flow *flow = LB_SCRATCH(flow);

	if (flow)
		__builtin_memset(flow, 0, sizeof(*flow));
	return flow;
}

/* What arrives in a tunnel was counted on the node that chose the backend. */
static __always_inline int lb_flow_begin(void *ctx, struct lb_packet *pkt, struct lb_flow *flow)
{
	int verdict;

	if (lb_flow_is_sampled() && !(flow->flags & LB_CT_DSR))
		flow->flags |= LB_CT_SAMPLED;
	verdict = flow->flags & LB_CT_DSR ? lb_dsr_create(pkt, flow) :
					    lb_conntrack_create(ctx, pkt, flow);
	if (verdict)
		return verdict;
	if (!(LB_HAS_DSR && flow->flags & LB_CT_TUNNELED)) {
		lb_open_begin(flow->desc_flags, flow->backend);
		lb_limit_begin(pkt, flow, lb_is_opening(pkt) && !flow->retry.failed);
		lb_count_first_packet(pkt, flow->frontend, flow->backend);
	}
	return LB_NEXT;
}

#endif
