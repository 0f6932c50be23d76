/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Masquerade: the backend sees an address of this node instead of the client's, and so sends its
 * reply to this node. Such a packet is redirected from tc, because the stack drops arriving packets
 * with one of its own addresses as the source; for the same reason backends that are processes of
 * this node are never masqueraded.
 */
#ifndef LB_MASQUERADE_H
#define LB_MASQUERADE_H

#include "addr.h"
#include "backend.h"
#include "conntrack.h"
#include "forward.h"
#include "frontend.h"
#include "maps.h"
#include "packet.h"

/* Whether the frontend requires it and the backend is not a process of this node. */
static __always_inline int lb_must_masquerade(const struct lb_desc *desc,
					      const struct lb_choice *choice)
{
	if (!(desc->flags & LB_DESC_MASQUERADE))
		return 0;
	return !(choice->backend->flags & LB_BACKEND_LOCAL) ||
	       !(lb_addr_flags_of(&choice->backend->addr) & LB_ADDR_NODE);
}

static __always_inline int lb_masquerade_as(struct lb_flow *flow, const struct lb_addr *source,
					    int reply_hook)
{
	flow->to.saddr = *source;
	flow->reply_hook = reply_hook;
	flow->flags = LB_CT_SNAT;
	return lb_addr_is_zero(&flow->to.saddr) ? -LB_DROP_NO_SNAT_ADDRESS : LB_NEXT;
}

/* For backends on this node: the node's primary address. */
static __always_inline int lb_masquerade_to_local(const struct lb_packet *pkt, struct lb_flow *flow)
{
	struct lb_settings *settings;
	int zero = 0;

	settings = lb_settings.lookup(&zero);
	if (!settings)
		return -LB_DROP_NO_SNAT_ADDRESS;
	return lb_masquerade_as(flow, pkt->is_ipv4 ? &settings->node4 : &settings->node6,
				LB_HOOK_POD_INGRESS);
}

/* NULL if the device is not a host device. */
static __always_inline const struct lb_addr *lb_masquerade_source(__u32 ifindex, int is_ipv4)
{
	int i = ifindex % LB_UPLINKS;
	struct lb_uplink *uplink = lb_uplinks.lookup(&i);
	struct lb_device *device;

	if (uplink && uplink->ifindex == ifindex)
		return is_ipv4 ? &uplink->snat4 : &uplink->snat6;
	device = lb_devices.lookup(&ifindex);
	if (!device)
		return NULL;
	return is_ipv4 ? &device->snat4 : &device->snat6;
}

/* For other backends: the address of the device by which the packet leaves. */
static __always_inline int lb_masquerade_to_remote(const struct lb_packet *pkt,
						   struct lb_flow *flow, __u32 ifindex)
{
	const struct lb_addr *source = lb_masquerade_source(ifindex, pkt->is_ipv4);

	if (!source)
		return -LB_DROP_NO_SNAT_ADDRESS;
	return lb_masquerade_as(flow, source, LB_HOOK_HOST_INGRESS);
}

static __always_inline int lb_masquerade(struct __sk_buff *skb, const struct lb_packet *pkt,
					 const struct lb_choice *choice, struct lb_flow *flow,
					 struct bpf_fib_lookup *fib)
{
	int verdict = lb_fib_lookup(fib, skb, pkt, &flow->to.daddr);

	if (verdict)
		return verdict;
	if (choice->backend->flags & LB_BACKEND_LOCAL)
		return lb_masquerade_to_local(pkt, flow);
	return lb_masquerade_to_remote(pkt, flow, fib->ifindex);
}

#endif
