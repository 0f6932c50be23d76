/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* struct lb_addr: build, compare, classify. Nothing here reads a map. */
#ifndef LB_ADDR_H
#define LB_ADDR_H

#include "types.h"

#define LB_AF_INET 2
#define LB_AF_INET6 10

#define LB_IPV4_PREFIX bpf_htonl(0x0000ffff)

static __always_inline void lb_addr_from_ipv4(struct lb_addr *addr, __be32 ipv4)
{
	addr->word[0] = 0;
	addr->word[1] = 0;
	addr->word[2] = LB_IPV4_PREFIX;
	addr->word[3] = ipv4;
}

static __always_inline int lb_addr_is_ipv4(const struct lb_addr *addr)
{
	return !addr->word[0] && !addr->word[1] && addr->word[2] == LB_IPV4_PREFIX;
}

static __always_inline int lb_addr_is_equal(const struct lb_addr *a, const struct lb_addr *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] &&
	       a->word[3] == b->word[3];
}

/* A 16-bit hash of the whole address; Python computes the same one. */
static __always_inline int lb_addr_fold(const struct lb_addr *addr)
{
	__u32 folded = addr->word[0] ^ addr->word[1] ^ addr->word[2] ^ addr->word[3];

	folded = bpf_ntohl(folded);
	return (folded ^ folded >> 16) & 0xffff;
}

/* Makes it the wildcard address of its family: ::ffff:0.0.0.0 or ::. */
static __always_inline void lb_addr_make_wildcard(struct lb_addr *addr)
{
	addr->word[2] = lb_addr_is_ipv4(addr) ? LB_IPV4_PREFIX : 0;
	addr->word[0] = 0;
	addr->word[1] = 0;
	addr->word[3] = 0;
}

static __always_inline int lb_addr_is_zero(const struct lb_addr *addr)
{
	return !addr->word[0] && !addr->word[1] && !addr->word[2] && !addr->word[3];
}

/* 127.0.0.0/8, ::1, and the two unspecified addresses, which also connect to the host itself. */
static __always_inline int lb_addr_is_own_host(const struct lb_addr *addr)
{
	if (lb_addr_is_ipv4(addr))
		return !addr->word[3] || (bpf_ntohl(addr->word[3]) >> 24) == 127;
	return !addr->word[0] && !addr->word[1] && !addr->word[2] &&
	       (!addr->word[3] || addr->word[3] == bpf_htonl(1));
}

/*
 * Loopback, unspecified and multicast addresses, which cannot get an answer. The stack drops
 * packets from them (ip_route_input_slow(), ip6_rcv_core()).
 */
static __always_inline int lb_addr_is_martian_source(const struct lb_addr *addr)
{
	__be32 multicast = lb_addr_is_ipv4(addr) ? addr->word[3] & bpf_htonl(0xf0000000) :
						   addr->word[0] & bpf_htonl(0xff000000);

	return lb_addr_is_own_host(addr) ||
	       multicast == bpf_htonl(lb_addr_is_ipv4(addr) ? 0xe0000000 : 0xff000000);
}

/* fe80::/10, by the first word of an IPv6 address. */
static __always_inline int lb_is_link_local(__be32 first)
{
	return (first & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

#endif
