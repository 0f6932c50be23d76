/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The middle of a connection to a Service that nothing knows: its entries are gone, or its address
 * has come from another node. Nobody would answer, so its sender is told here, as by a host without
 * such a connection (reset.h); SCTP is dropped.
 */
#ifndef LB_UNKNOWN_CONNECTION_H
#define LB_UNKNOWN_CONNECTION_H

#include "conntrack.h"
#include "frontend.h"
#include "listener.h"
#include "packet.h"
#include "source_range.h"
#include "verdict.h"

/*
 * Whether an address is for Services alone: what comes there is for nobody else. At an external IP
 * that another node has as its own, it may be an answer that a pod sends to a process there.
 */
static __always_inline int lb_is_for_services_alone(const struct lb_addr *addr, int hook)
{
	__u64 flags = lb_addr_flags_of(addr);
	__u64 wanted = LB_ADDR_CLUSTER_IP;

	if (hook == LB_HOOK_HOST_INGRESS)
		wanted |= LB_ADDR_EXTERNAL;
	return flags & wanted && !(flags & LB_ADDR_NODE);
}

/*
 * Whether a packet that opens no flow may be of such a connection; asked first, because it is cheap.
 * The setting says that no connection to a Service is left that netfilter translates.
 */
static __always_inline int lb_may_be_unknown(const struct lb_packet *pkt, int hook)
{
	return (hook == LB_HOOK_HOST_INGRESS || hook == LB_HOOK_POD_INGRESS) &&
	       lb_has_setting(LB_SETTING_RESETS) &&
	       lb_is_for_services_alone(&pkt->tuple.daddr, hook);
}

/* Whether a packet that opens no flow may be for a Service. */
static __always_inline int lb_may_go_on(const struct lb_packet *pkt, int hook)
{
	return (LB_HAS_DSR && hook == LB_HOOK_HOST_INGRESS) || lb_may_be_unknown(pkt, hook);
}

/*
 * For a packet of TCP or SCTP to a frontend, or to a port that no Service has: found is the result of
 * lb_service_match(). LB_PASS: the flow is one of another hook, of a socket, or of another node that
 * has the address, too.
 */
static __always_inline int lb_unknown_connection(void *ctx, struct lb_packet *pkt, int hook,
						 const struct lb_match *match, int found)
{
	int verdict;

	if (!lb_may_be_unknown(pkt, hook) || lb_conntrack_lookup_connection(&pkt->tuple) ||
	    lb_has_socket(ctx, &pkt->tuple))
		return LB_PASS;
	if (found == -LB_DROP_UNSERVED_PORT)
		return found;
	if (!found && match->desc->others.if_empty == LB_EMPTY_PASS)
		return LB_PASS;
	if (!found) {
		verdict = lb_source_range_check(match->desc, &pkt->tuple.saddr);
		if (verdict)
			return verdict;
	}
	return -LB_DROP_UNKNOWN_CONNECTION;
}

#endif
