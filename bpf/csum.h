/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Internet checksums, updated only through the kernel's helpers, which know about checksum offload.
 */
#ifndef LB_CSUM_H
#define LB_CSUM_H

#include "packet.h"

static __always_inline __u16 lb_csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* The checksum difference from `from` to `to`, both of size bytes; size is a multiple of 4. */
static __always_inline __u32 lb_csum_diff(const void *from, const void *to, __u32 size)
{
	return bpf_csum_diff((__be32 *)from, size, (__be32 *)to, size, 0);
}

/* The IPv4 header's checksum with a new TTL, and addresses that differ by diff. */
static __always_inline __sum16 lb_csum_ipv4(const struct lb_packet *pkt, __u8 ttl, __u32 diff)
{
	__u32 sum = (__u16)~pkt->check + (diff & 0xffff) + (diff >> 16);

	sum += bpf_htons(ttl << 8) + (__u16)~bpf_htons(pkt->ttl << 8);
	return lb_csum_fold(sum);
}

static __always_inline int lb_csum_offset(const struct lb_packet *pkt)
{
	if (pkt->tuple.proto == IPPROTO_TCP)
		return pkt->l4 + offsetof(struct tcphdr, check);
	return pkt->l4 + offsetof(struct udphdr, check);
}

/* A UDP checksum of zero means no checksum (IPv4), and stays zero. */
static __always_inline int lb_csum_flags(const struct lb_packet *pkt)
{
	return pkt->tuple.proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

/* Of a pseudo header; the rest of a mapped IPv4 address adds nothing. */
static __always_inline __u32 lb_csum_of_addresses(const struct lb_packet *pkt)
{
	return bpf_csum_diff(NULL, 0, (__be32 *)&pkt->tuple.saddr, 2 * sizeof(struct lb_addr), 0);
}

#endif
