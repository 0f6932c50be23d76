/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * UDP that this node sends from a port that is also a NodePort, or a Service's at an external IP that
 * is this node's address: by a process of the host, or by a pod that another NAT masquerades. The
 * answer looks like a request to the Service; so the
 * answer's tuple is reserved when the datagram leaves, for as long as the UDP timeouts. In
 * netfilter, only a packet that opens a flow is translated, and such an answer does not open one.
 */
#ifndef LB_OWN_UDP_H
#define LB_OWN_UDP_H

#include "conntrack.h"
#include "flow_timeout.h"
#include "frontend.h"
#include "maps.h"
#include "masquerade.h"
#include "packet.h"

/*
 * Whether the entry reserves the packet's tuple for another NAT, or for an answer that has not
 * timed out. The agent's reservations, for another NAT, have a time in the future.
 */
static __always_inline int lb_is_reserved(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	if (entry->hook != LB_HOOK_RESERVED)
		return 0;
	if (pkt->tuple.proto != IPPROTO_UDP || (__s64)(pkt->now - entry->last_seen) < 0)
		return 1;
	if (lb_conntrack_is_idle(pkt, entry))
		return 0;
	/* Answered: now the timeout of a stream applies. */
	entry->state |= LB_CT_ESTABLISHED;
	entry->last_seen = pkt->now;
	return 1;
}

/*
 * Whether the packet has this node as its source other than by our own translation: a packet
 * redirected from a host device was a reply of ours.
 */
static __always_inline int lb_own_udp_is_own(struct __sk_buff *skb, const struct lb_packet *pkt)
{
	if (pkt->tuple.proto != IPPROTO_UDP)
		return 0;
	if (skb->sk)
		return 1;
	return !lb_is_host_device(skb->ingress_ifindex);
}

static __always_inline void lb_own_udp_reserve(struct lb_tuple *answer, __u64 now)
{
	struct lb_conntrack *entry = LB_SCRATCH(entry);

	if (!entry)
		return;
	__builtin_memset(entry, 0, sizeof(*entry));
	entry->created = now;
	entry->last_seen = now;
	entry->direction = LB_DIR_REPLY;
	entry->hook = LB_HOOK_RESERVED;
	lb_ct_udp.update(answer, entry);
}

/* Whether a packet to the key, which has an address of this node, would be for a Service. */
static __always_inline int lb_own_udp_is_frontend(struct lb_frontend_key *key, __u64 flags)
{
	struct lb_match match = {};

	return lb_vip_lookup(key, &match) ||
	       (flags & LB_ADDR_NODE_PORT && lb_node_port_lookup(key, &match));
}

/* The packet leaves from a port that may be a Service's, and belongs to no flow of ours. */
static __always_inline void lb_own_udp_sent(struct __sk_buff *skb, struct lb_packet *pkt)
{
	struct lb_frontend_key key = {
		.addr = pkt->tuple.saddr,
		.port = pkt->tuple.sport,
		.proto = pkt->tuple.proto,
	};
	__u64 flags = lb_addr_flags_of(&pkt->tuple.saddr);
	struct lb_conntrack *entry;

	if (!(flags & LB_ADDR_NODE) || !lb_own_udp_is_own(skb, pkt))
		return;
	lb_tuple_reverse(&pkt->reverse, &pkt->tuple);
	entry = lb_conntrack_lookup_udp(&pkt->reverse);
	if (!entry) {
		if (lb_own_udp_is_frontend(&key, flags))
			lb_own_udp_reserve(&pkt->reverse, pkt->now);
	} else if (entry->hook == LB_HOOK_RESERVED && (__s64)(pkt->now - entry->last_seen) > 0) {
		entry->last_seen = pkt->now;
	}
}

#endif
