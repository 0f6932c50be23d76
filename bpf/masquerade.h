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
#include "filter.h"
#include "frontend.h"
#include "maps.h"
#include "packet.h"

/* Whether a backend is a process of this node, on any of its addresses. */
static __always_inline int lb_is_own_process(const struct lb_backend *backend)
{
	return lb_filter_flags_of(&backend->addr) & LB_ADDR_NODE &&
	       lb_addr_flags_of(&backend->addr) & LB_ADDR_NODE;
}

/* Whether a backend is known to be on this node before its route is looked up. */
static __always_inline int lb_is_known_local(const struct lb_backend *backend)
{
	return backend->flags & LB_BACKEND_LOCAL || lb_is_own_process(backend);
}

/* Whether the frontend requires SNAT and the backend is not a process of this node. */
static __always_inline int lb_must_masquerade(const struct lb_desc *desc,
					      const struct lb_choice *choice)
{
	return desc->flags & LB_DESC_MASQUERADE && !lb_is_own_process(choice->backend);
}

static __always_inline int lb_masquerade_as(struct lb_flow *flow, const struct lb_addr *source)
{
	flow->to.saddr = *source;
	flow->flags |= LB_CT_SNAT;
	return lb_addr_is_zero(&flow->to.saddr) ? -LB_DROP_NO_SNAT_ADDRESS : LB_NEXT;
}

/* For pods of this node: the node's primary address. */
static __always_inline int lb_masquerade_to_local(const struct lb_packet *pkt, struct lb_flow *flow)
{
	struct lb_settings *settings = lb_settings_get();

	if (!settings)
		return -LB_DROP_NO_SNAT_ADDRESS;
	flow->reply_hook = LB_HOOK_POD_INGRESS;
	return lb_masquerade_as(flow, pkt->is_ipv4 ? &settings->node4 : &settings->node6);
}

/* Packets that leave through any other device are for a pod of this node. */
static __always_inline int lb_is_host_device(__u32 ifindex)
{
	int i = ifindex % LB_UPLINKS;
	struct lb_uplink *uplink = lb_uplinks.lookup(&i);
	struct lb_device *device;

	if (uplink && uplink->ifindex == ifindex)
		return 1;
	device = lb_devices.lookup(&ifindex);
	return device && device->kind == LB_DEVICE_HOST;
}

/*
 * For a device with several subnets: its address in the next hop's subnet. A link-local next hop is
 * in none; then the address with the longest common prefix with the destination.
 */
static __always_inline const struct lb_addr *
lb_masquerade_by_subnet(const struct bpf_fib_lookup *fib, const struct lb_addr *daddr, int is_ipv4)
{
	struct lb_subnet key = {
		.length = 8 * (sizeof(key.ifindex) + sizeof(key.addr)),
		.ifindex = fib->ifindex,
		.addr = *daddr,
	};

	if (is_ipv4 && fib->family == LB_AF_INET)
		key.addr.word[3] = fib->ipv4_dst;
	if (!is_ipv4 && !lb_is_link_local(fib->ipv6_dst[0]))
		__builtin_memcpy(&key.addr, fib->ipv6_dst, sizeof(key.addr));
	return lb_subnets.lookup(&key);
}

/*
 * The SNAT address for the route in fib. NULL if that does not leave through a host device: the
 * packet is for a pod of this node.
 */
static __always_inline const struct lb_addr *
lb_masquerade_source(const struct bpf_fib_lookup *fib, const struct lb_addr *daddr, int is_ipv4)
{
	__u32 ifindex = fib->ifindex;
	int i = ifindex % LB_UPLINKS;
	struct lb_uplink *uplink = lb_uplinks.lookup(&i);
	const struct lb_addr *first, *in_subnet;
	struct lb_device *device;
	__u32 flags;

	if (uplink && uplink->ifindex == ifindex) {
		first = is_ipv4 ? &uplink->snat4 : &uplink->snat6;
		flags = uplink->flags;
	} else {
		device = lb_devices.lookup(&ifindex);
		if (!device || device->kind != LB_DEVICE_HOST)
			return NULL;
		first = is_ipv4 ? &device->snat4 : &device->snat6;
		flags = device->flags;
	}
	in_subnet = flags & LB_DEVICE_SUBNETS ? lb_masquerade_by_subnet(fib, daddr, is_ipv4) : NULL;
	return in_subnet ? in_subnet : first;
}

/*
 * NULL for a pod of this node, according to its endpoint, unless the pod is beside the node
 * (service.h), or else according to the route.
 */
static __always_inline const struct lb_addr *
lb_masquerade_source_for(const struct lb_choice *choice, int is_beside, const struct lb_packet *pkt,
			 const struct bpf_fib_lookup *fib)
{
	if (choice->backend->flags & LB_BACKEND_LOCAL && !is_beside)
		return NULL;
	return lb_masquerade_source(fib, &choice->backend->addr, pkt->is_ipv4);
}

/* source: NULL for a pod of this node. */
static __always_inline int lb_masquerade(const struct lb_packet *pkt, struct lb_flow *flow,
					 const struct lb_addr *source)
{
	if (!source) {
		flow->flags |= LB_CT_TO_POD;
		return lb_masquerade_to_local(pkt, flow);
	}
	flow->reply_hook = LB_HOOK_HOST_INGRESS;
	return lb_masquerade_as(flow, source);
}

/*
 * The route of a flow's requests may change to a pod of this node, whose device appeared after its
 * endpoint. From then on its replies come in through that device.
 */
static __always_inline void lb_masquerade_follow_route(struct lb_packet *pkt, int is_udp)
{
	struct lb_conntrack *entry = lb_conntrack_lookup(&pkt->tuple, is_udp);
	struct lb_conntrack *reply;

	reply = entry ? lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, is_udp) : NULL;
	if (!reply)
		return;
	lb_reply_filter_add(&pkt->reverse, LB_HOOK_POD_INGRESS, pkt->now);
	reply->hook = LB_HOOK_POD_INGRESS;
	entry->flags |= LB_CT_TO_POD;
}

#endif
