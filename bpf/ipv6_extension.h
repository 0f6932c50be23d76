/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * IPv6 extension headers between the IPv6 header and the transport header. A fragment header ends
 * the walk: later fragments do not show which headers follow it in the first one.
 */
#ifndef LB_IPV6_EXTENSION_H
#define LB_IPV6_EXTENSION_H

#include "packet.h"
#include "verdict.h"

#define LB_EXTENSIONS 4

#define LB_IPV6_OFFSET 0xfff8
#define LB_IPV6_MORE 0x0001

/* offset: of a fragment, with flags; in a routing header its second byte is segments left. */
struct lb_extension {
	__u8 next;
	__u8 len;
	__be16 offset;
	__be32 id;
};

/* The state of the walk, from skb->data. fragment: enum lb_fragment_place, or 0. */
struct lb_extension_walk {
	__u32 offset;
	__be32 id;
	__u8 proto;
	__u8 fragment;
};

static __always_inline int lb_is_extension(__u8 proto)
{
	return proto == IPPROTO_HOPOPTS || proto == IPPROTO_ROUTING || proto == IPPROTO_FRAGMENT ||
	       proto == IPPROTO_DSTOPTS;
}

static __always_inline void lb_extension_fragment(const struct lb_extension *header,
						  struct lb_extension_walk *walk)
{
	walk->offset += sizeof(*header);
	if (header->offset & bpf_htons(LB_IPV6_OFFSET))
		walk->fragment = LB_FRAGMENT_LATER;
	else if (header->offset & bpf_htons(LB_IPV6_MORE))
		walk->fragment = LB_FRAGMENT_FIRST;
	walk->id = header->id;
}

/* LB_PASS for too many, and for a destination that is only a hop of a routing header. */
static __always_inline int lb_extension_skip_all(struct __sk_buff *skb,
						 struct lb_extension_walk *walk)
{
	struct lb_extension header;
	__u8 proto;

	for (int i = 0; i < LB_EXTENSIONS; i++) {
		proto = walk->proto;
		if (bpf_skb_load_bytes(skb, walk->offset, &header, sizeof(header)))
			return LB_PASS;
		if (proto == IPPROTO_ROUTING && header.offset & bpf_htons(0x00ff))
			return LB_PASS;
		walk->proto = header.next;
		if (proto == IPPROTO_FRAGMENT) {
			lb_extension_fragment(&header, walk);
			return LB_NEXT;
		}
		walk->offset += 8 * (header.len + 1);
		if (!lb_is_extension(walk->proto))
			return LB_NEXT;
	}
	return LB_PASS;
}

#endif
