/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The one exit at tc: what is not let through is counted and answered, what has ended is told of. */
#ifndef LB_EXIT_H
#define LB_EXIT_H

#include "counters.h"
#include "flow_record.h"
#include "parse.h"
#include "reject.h"
#include "sctp_csum.h"

/* Devices of pods come and go: theirs are counted together. */
static __always_inline __u32 lb_drop_place(struct __sk_buff *skb, int hook)
{
	if (hook == LB_HOOK_POD_INGRESS || hook == LB_HOOK_POD_EGRESS)
		return LB_DROP_AT_POD;
	return skb->ifindex;
}

/* Counts and answers what is not let through. */
static __always_inline int lb_tc_action(struct __sk_buff *skb, const struct lb_packet *pkt,
					int hook, int verdict, __u32 mtu)
{
	if (verdict == LB_REDIRECT)
		return TC_ACT_REDIRECT;
	if (verdict >= 0)
		return TC_ACT_UNSPEC;
	lb_count_drop_at(lb_drop_place(skb, hook), -verdict);
	if (lb_reject(skb, pkt, -verdict, hook, mtu) == LB_REDIRECT)
		return TC_ACT_REDIRECT;
	return TC_ACT_SHOT;
}

/* The checksum of SCTP comes last: before the end of the path the verifier would follow it often. */
static __always_inline int lb_tc_exit(struct __sk_buff *skb, const struct lb_packet *pkt, int hook,
				      int verdict, __u32 mtu)
{
	int action = lb_tc_action(skb, pkt, hook, verdict, mtu);

	lb_flow_end_report();
	if (pkt->tuple.proto == IPPROTO_SCTP)
		lb_sctp_csum_update(skb);
	return action;
}

#endif
