/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Internet checksums. Those of an skb are updated only through the kernel's helpers, which know about
 * checksum offload.
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

/* A sum of less than 2^32 words as one of 32 bits. */
static __always_inline __u32 lb_csum_fold_words(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (sum & 0xffffffff) + (sum >> 32);
}

/*
 * The checksum difference from `from` to `to`, both of size bytes: a multiple of 4, and a constant. For
 * so few bytes a call of bpf_csum_diff() takes longer.
 */
static __always_inline __u32 lb_csum_diff(const void *from, const void *to, __u32 size)
{
	const __be32 *old = from, *new = to;
	__u64 sum = 0;

#pragma unroll
	for (__u32 i = 0; i < size / sizeof(*old); i++)
		sum += (__u64) new[i] + (__u32)~old[i];
	return lb_csum_fold_words(sum);
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
	const struct lb_addr *from = &pkt->tuple.saddr, *to = &pkt->tuple.daddr;
	__u64 sum = 0;

#pragma unroll
	for (int i = 0; i < 4; i++)
		sum += (__u64)from->word[i] + to->word[i];
	return lb_csum_fold_words(sum);
}

#endif
