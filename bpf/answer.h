/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The IP headers of answers to a packet's sender, made in place of the packet (reject.h, reset.h). */
#ifndef LB_ANSWER_H
#define LB_ANSWER_H

#include "csum.h"
#include "packet.h"

#define LB_ANSWER_TTL 64

/* len: of the packet, the header included. */
static __always_inline void lb_answer_ipv4(struct iphdr *ip, const struct lb_packet *pkt,
					   int protocol, int len)
{
	ip->version = 4;
	ip->ihl = sizeof(*ip) / 4;
	ip->tot_len = bpf_htons(len);
	ip->ttl = LB_ANSWER_TTL;
	ip->protocol = protocol;
	ip->saddr = pkt->tuple.daddr.word[3];
	ip->daddr = pkt->tuple.saddr.word[3];
	ip->check = lb_csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
}

/* len: of what follows the header. */
static __always_inline void lb_answer_ipv6(struct ipv6hdr *ip, const struct lb_packet *pkt,
					   int protocol, int len)
{
	ip->version = 6;
	ip->payload_len = bpf_htons(len);
	ip->nexthdr = protocol;
	ip->hop_limit = LB_ANSWER_TTL;
	__builtin_memcpy(&ip->saddr, &pkt->tuple.daddr, sizeof(struct lb_addr));
	__builtin_memcpy(&ip->daddr, &pkt->tuple.saddr, sizeof(struct lb_addr));
}

#endif
