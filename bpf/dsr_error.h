/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * ICMP errors from outside that concern no flow of this node, but a tunnel, or a flow that another
 * node sends in one: routers that spread packets by a hash send errors about the answers anywhere.
 */
#ifndef LB_DSR_ERROR_H
#define LB_DSR_ERROR_H

#include "packet.h"
#include "tunnel_mtu.h"
#include "verdict.h"

/*
 * LB_NEXT: it goes on like a packet from the middle of the connection that it is about, whose tuple
 * it gets (lb_dsr_resume()).
 */
static __always_inline int lb_dsr_error(struct __sk_buff *skb, struct lb_packet *pkt,
					const struct lb_packet *quote)
{
	lb_tunnel_note_mtu(skb, pkt, quote);
	if (quote->reverse.proto == IPPROTO_SCTP)
		return LB_PASS;
	pkt->tuple = quote->reverse;
	pkt->tcp_flags = 0;
	pkt->routing |= LB_IS_ERROR;
	return LB_NEXT;
}

#endif
