/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The early filter: array lookups that let most packets pass before they are parsed. lb_dest_filter
 * checks the destination and is set by the agent; lb_reply_filter checks the source and is set when
 * a flow starts. Neither is ever cleared: a stale bit only costs a lookup. ICMP errors may come
 * from anywhere, so they always go on from lb_reply_filter. lb_peer_filter does the same for
 * sockets, by their peer.
 */
#ifndef LB_FILTER_H
#define LB_FILTER_H

#include "ipv6_extension.h"
#include "maps.h"
#include "parse.h"

/* ICMP_PARAMETERPROB; the errors of ICMPv6 have lower numbers. */
#define LB_ICMP_LAST_ERROR 12

/* A hash of the last word of an address and a port. */
static __always_inline int lb_filter_index(__be32 address, __be16 port)
{
	return (bpf_ntohl(address) & 0xffff) ^ bpf_ntohs(port);
}

/* hook: where the reply is reversed. */
static __always_inline void lb_reply_filter_add(const struct lb_tuple *reply, __u8 hook)
{
	int index = lb_filter_index(reply->saddr.word[3], reply->sport);
	struct lb_reply_ends *ends = lb_reply_filter.lookup(&index);

	if (ends)
		ends->hooks[hook % sizeof(ends->hooks)] = 1;
}

/* For the peer that a socket was translated to. */
static __always_inline void lb_peer_filter_add(__be32 address, __be16 port)
{
	int index = lb_filter_index(address, port);
	__u8 *is_set = lb_peer_filter.lookup(&index);

	if (is_set)
		*is_set = 1;
}

static __always_inline int lb_peer_filter_has(__be32 address, __be16 port)
{
	int index = lb_filter_index(address, port);
	__u8 *is_set = lb_peer_filter.lookup(&index);

	return is_set && *is_set;
}

/* Reads two bytes at offset4 or offset6. Returns 0 if they are not in the linear part. */
static __always_inline int lb_filter_peek(struct __sk_buff *skb, int l2, int offset4, int offset6,
					  __be16 *value)
{
	int offset = l2 + (skb->protocol == bpf_htons(ETH_P_IP) ? offset4 : offset6);
	__be16 *place = (void *)(long)skb->data + offset;

	if ((void *)(place + 1) > (void *)(long)skb->data_end)
		return 0;
	*value = *place;
	return 1;
}

/* type: the two bytes where TCP and UDP have the source port; ICMP has its type and code there. */
static __always_inline int lb_filter_may_be_error(struct __sk_buff *skb, int l2, __be16 type)
{
	int is_ipv4 = skb->protocol == bpf_htons(ETH_P_IP);
	__be16 field;
	__u8 proto;

	if (bpf_ntohs(type) >= (LB_ICMP_LAST_ERROR + 1) << 8)
		return 0;
	if (!lb_filter_peek(skb, l2, offsetof(struct iphdr, ttl), offsetof(struct ipv6hdr, nexthdr),
			    &field))
		return 1;
	proto = is_ipv4 ? bpf_ntohs(field) & 0xff : bpf_ntohs(field) >> 8;
	return proto == (is_ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}

/* Whether lb_filter_peek() finds the ports: no fragment, options or extension headers. */
static __always_inline int lb_filter_is_plain(struct __sk_buff *skb, int l2)
{
	__be16 start, end;

	if (!lb_filter_peek(skb, l2, 0, offsetof(struct ipv6hdr, nexthdr), &start))
		return 0;
	if (skb->protocol != bpf_htons(ETH_P_IP))
		return !lb_is_extension(bpf_ntohs(start) >> 8);
	return (start & bpf_htons(0x0f00)) == bpf_htons(0x0500) &&
	       lb_filter_peek(skb, l2, offsetof(struct iphdr, frag_off), 0, &end) &&
	       !(end & bpf_htons(LB_IPV4_FRAGMENT));
}

static __always_inline int lb_filter_may_be_reply(struct __sk_buff *skb, int l2, int hook)
{
	struct lb_reply_ends *ends;
	__be16 end, port;
	int index;

	if (!lb_filter_peek(skb, l2, sizeof(struct iphdr), sizeof(struct ipv6hdr), &port) ||
	    !lb_filter_peek(skb, l2, offsetof(struct iphdr, saddr) + 2,
			    offsetof(struct ipv6hdr, saddr) + 14, &end))
		return 1;
	index = bpf_ntohs(end) ^ bpf_ntohs(port);
	ends = lb_reply_filter.lookup(&index);
	return (ends && (ends->hooks[hook] | ends->hooks[LB_HOOK_RESERVED])) ||
	       lb_filter_may_be_error(skb, l2, port) || !lb_filter_is_plain(skb, l2);
}

/* enum lb_addr_flag of the addresses that end in, and the NodePort that is, these two bytes. */
static __always_inline int lb_filter_flags(__be16 end)
{
	int index = bpf_ntohs(end);
	struct lb_dest *dest = lb_dest_filter.lookup(&index);

	return dest ? dest->flags : 0;
}

/* The same for an address. */
static __always_inline int lb_filter_flags_of(const struct lb_addr *addr)
{
	return lb_filter_flags(bpf_htons(bpf_ntohl(addr->word[3]) & 0xffff));
}

/* To a node address only NodePorts and the replies of masqueraded flows matter. */
static __always_inline int lb_filter_may_be_for_node(struct __sk_buff *skb, int l2, int hook)
{
	__be16 port;

	if (!lb_filter_peek(skb, l2, sizeof(struct iphdr) + offsetof(struct udphdr, dest),
			    sizeof(struct ipv6hdr) + offsetof(struct udphdr, dest), &port))
		return 1;
	return lb_filter_flags(port) & LB_ADDR_NODE_PORT || lb_filter_may_be_reply(skb, l2, hook);
}

static __always_inline int lb_filter_may_be_request(struct __sk_buff *skb, int l2, int hook)
{
	__be16 end;
	int flags;

	if (!lb_filter_peek(skb, l2, offsetof(struct iphdr, daddr) + 2,
			    offsetof(struct ipv6hdr, daddr) + 14, &end))
		return 1;
	flags = lb_filter_flags(end);
	if (flags & (LB_ADDR_CLUSTER_IP | LB_ADDR_EXTERNAL))
		return 1;
	return flags & LB_ADDR_NODE && lb_filter_may_be_for_node(skb, l2, hook);
}

#endif
