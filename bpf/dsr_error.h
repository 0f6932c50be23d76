/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * ICMP errors from outside that concern no flow of this node, but a tunnel, or a flow that another
 * node sends in one: routers that spread packets by a hash send errors about the answers anywhere.
 */
#ifndef LB_DSR_ERROR_H
#define LB_DSR_ERROR_H

#include "packet.h"
#include "service.h"
#include "tunnel_end.h"
#include "tunnel_mtu.h"
#include "verdict.h"
#include "verifier.h"

/* Changes the quoted packet into one in the direction of the error. */
static __always_inline int lb_dsr_error(struct __sk_buff *skb, struct lb_packet *pkt,
					struct lb_packet *quote, struct bpf_fib_lookup *fib)
{
	struct lb_choice choice = {};
	struct lb_match match = {};
	struct lb_flow flow = {};

	lb_tunnel_note_mtu(skb, pkt, quote);
	if (lb_tunnel_opened())
		return LB_PASS;
	lb_verifier_merge_states(pkt);
	quote->tuple = quote->peer;
	quote->tcp_flags = 0;
	if (lb_service_match(skb, quote, &match) ||
	    lb_dsr_resume(skb, quote, &match, &choice, &flow, fib))
		return LB_PASS;
	pkt->peer = flow.to;
	return LB_TUNNEL;
}

#endif
