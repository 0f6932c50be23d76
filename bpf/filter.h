/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Most packets are none of ours. A byte in an array says so before they are parsed: by the end of
 * the destination on the way in, by the ends of source and port on the way out. The agent sets the
 * one, a flow that begins the other; neither is cleared, one that is set in vain costs a look.
 */
#ifndef LB_FILTER_H
#define LB_FILTER_H

#include "maps.h"

/* By the last word of an address, and a port. */
static __always_inline int lb_filter_index(__be32 address, __be16 port)
{
	return (bpf_ntohl(address) & 0xffff) ^ bpf_ntohs(port);
}

static __always_inline void lb_filter_add(const struct lb_tuple *reply)
{
	int index = lb_filter_index(reply->saddr.word[3], reply->sport);
	__u8 *is_set = lb_reply_filter.lookup(&index);

	if (is_set)
		*is_set = 1;
}

/* Two bytes of the IP packet at offset4 or offset6. Returns 0 when they are not in reach. */
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

static __always_inline int lb_filter_may_be_request(struct __sk_buff *skb, int l2)
{
	__be16 end;
	__u8 *is_set;
	int index;

	if (!lb_filter_peek(skb, l2, offsetof(struct iphdr, daddr) + 2,
			    offsetof(struct ipv6hdr, daddr) + 14, &end))
		return 1;
	index = bpf_ntohs(end);
	is_set = lb_addr_filter.lookup(&index);
	return is_set && *is_set;
}

static __always_inline int lb_filter_may_be_reply(struct __sk_buff *skb, int l2)
{
	__be16 end, port;
	__u8 *is_set;
	int index;

	if (!lb_filter_peek(skb, l2, sizeof(struct iphdr), sizeof(struct ipv6hdr), &port) ||
	    !lb_filter_peek(skb, l2, offsetof(struct iphdr, saddr) + 2,
			    offsetof(struct ipv6hdr, saddr) + 14, &end))
		return 1;
	index = bpf_ntohs(end) ^ bpf_ntohs(port);
	is_set = lb_reply_filter.lookup(&index);
	return is_set && *is_set;
}

#endif
