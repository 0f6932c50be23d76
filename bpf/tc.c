/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The entry points at tc. The ingress of a workload device has its pod's packets; the ingress of a
 * host device has packets from outside. Packets that are not for a Service pass unchanged, as do
 * frames that the wire brings to a host device but that are for another MAC address: the stack drops
 * them.
 */
#include "path.h"

int lb_host_ingress(struct __sk_buff *skb)
{
	struct lb_tc_hook at = { .hook = LB_HOOK_HOST_INGRESS };

	if (skb->pkt_type == PACKET_OTHERHOST)
		return TC_ACT_UNSPEC;
	return lb_tc_request(skb, &at, ETH_HLEN);
}

int lb_host_egress(struct __sk_buff *skb)
{
	struct lb_tc_hook at = { .hook = LB_HOOK_HOST_EGRESS, .is_local_source = 1 };

	return lb_tc_reply(skb, &at, ETH_HLEN);
}

int lb_l3_ingress(struct __sk_buff *skb)
{
	struct lb_tc_hook at = { .hook = LB_HOOK_HOST_INGRESS };

	return lb_tc_request(skb, &at, 0);
}

int lb_l3_egress(struct __sk_buff *skb)
{
	struct lb_tc_hook at = { .hook = LB_HOOK_HOST_EGRESS, .is_local_source = 1 };

	return lb_tc_reply(skb, &at, 0);
}

int lb_pod_ingress(struct __sk_buff *skb)
{
	struct lb_tc_hook at = { .hook = LB_HOOK_POD_INGRESS, .is_local_source = 1 };

	return lb_tc_request(skb, &at, ETH_HLEN);
}

int lb_pod_egress(struct __sk_buff *skb)
{
	struct lb_tc_hook at = { .hook = LB_HOOK_POD_EGRESS };

	return lb_tc_reply(skb, &at, ETH_HLEN);
}
