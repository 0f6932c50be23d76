/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Internet checksums, always through the kernel's helpers (partial and complete checksums). */
#ifndef LB_CSUM_H
#define LB_CSUM_H

#include "packet.h"

static __always_inline __u16 lb_csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline int lb_csum_offset(const struct lb_packet *pkt)
{
	if (pkt->tuple.proto == IPPROTO_TCP)
		return pkt->l4 + offsetof(struct tcphdr, check);
	return pkt->l4 + offsetof(struct udphdr, check);
}

/* A UDP checksum of zero means none (IPv4) and stays so. */
static __always_inline int lb_csum_flags(const struct lb_packet *pkt)
{
	return pkt->tuple.proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

#endif
