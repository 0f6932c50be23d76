/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP messages: which are errors, and which error answers a drop reason. */
#ifndef LB_ICMP_H
#define LB_ICMP_H

#include "packet.h"
#include "path_mtu.h"
#include "verdict.h"

/* Not redirects, which are for a router's neighbours, nor source quench, which is obsolete. */
static __always_inline int lb_icmp_is_error(const struct lb_packet *pkt, __u8 type)
{
	if (pkt->is_ipv4)
		return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED ||
		       type == ICMP_PARAMETERPROB;
	return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMPROB;
}

/* Returns 0 for a reason that has no ICMP error. */
static __always_inline int lb_icmp_fill(struct lb_icmp *icmp, const struct lb_packet *pkt,
					int reason, __u32 mtu)
{
	icmp->csum = 0;
	icmp->rest = 0;
	if (lb_is_refusal(reason)) {
		icmp->type = pkt->is_ipv4 ? ICMP_DEST_UNREACH : ICMPV6_DEST_UNREACH;
		icmp->code = pkt->is_ipv4 ? ICMP_PORT_UNREACH : ICMPV6_PORT_UNREACH;
		return 1;
	}
	if (reason == LB_DROP_NO_ROUTE) {
		icmp->type = pkt->is_ipv4 ? ICMP_DEST_UNREACH : ICMPV6_DEST_UNREACH;
		icmp->code = pkt->is_ipv4 ? ICMP_HOST_UNREACH : ICMPV6_NOROUTE;
		return 1;
	}
	if (reason == LB_DROP_TTL_EXCEEDED) {
		icmp->type = pkt->is_ipv4 ? ICMP_TIME_EXCEEDED : ICMPV6_TIME_EXCEED;
		icmp->code = 0;
		return 1;
	}
	if (reason == LB_DROP_TOO_BIG) {
		lb_path_mtu_fill(icmp, pkt, mtu);
		return 1;
	}
	return 0;
}

#endif
