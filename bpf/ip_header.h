/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * IP headers that this node writes: of answers, in place of a packet (reject.h, reset.h), and of
 * tunnels (tunnel.h). is_ipv4 is a constant everywhere.
 */
#ifndef LB_IP_HEADER_H
#define LB_IP_HEADER_H

#include "addr.h"
#include "csum.h"
#include "packet.h"

#define LB_IP_TTL 64

static __always_inline void lb_ip_read(const void *header, struct lb_addr *saddr,
				       struct lb_addr *daddr, int is_ipv4)
{
	const struct ipv6hdr *ipv6 = header;
	const struct iphdr *ipv4 = header;

	if (is_ipv4) {
		lb_addr_from_ipv4(saddr, ipv4->saddr);
		lb_addr_from_ipv4(daddr, ipv4->daddr);
	} else {
		__builtin_memcpy(saddr, &ipv6->saddr, sizeof(*saddr));
		__builtin_memcpy(daddr, &ipv6->daddr, sizeof(*daddr));
	}
}

static __always_inline void lb_ip_write(void *header, const struct lb_addr *saddr,
					const struct lb_addr *daddr, int is_ipv4)
{
	struct ipv6hdr *ipv6 = header;
	struct iphdr *ipv4 = header;

	if (is_ipv4) {
		ipv4->saddr = saddr->word[3];
		ipv4->daddr = daddr->word[3];
	} else {
		__builtin_memcpy(&ipv6->saddr, saddr, sizeof(*saddr));
		__builtin_memcpy(&ipv6->daddr, daddr, sizeof(*daddr));
	}
}

/* header: has its addresses, and maybe frag_off; the rest is zero. len: of what follows it. */
static __always_inline void lb_ip_complete(void *header, int protocol, __u32 len, int is_ipv4)
{
	struct ipv6hdr *ipv6 = header;
	struct iphdr *ipv4 = header;

	if (is_ipv4) {
		ipv4->version = 4;
		ipv4->ihl = sizeof(*ipv4) / 4;
		ipv4->tot_len = bpf_htons(sizeof(*ipv4) + len);
		ipv4->ttl = LB_IP_TTL;
		ipv4->protocol = protocol;
		ipv4->check = lb_csum_fold(bpf_csum_diff(NULL, 0, header, sizeof(*ipv4), 0));
	} else {
		ipv6->version = 6;
		ipv6->payload_len = bpf_htons(len);
		ipv6->nexthdr = protocol;
		ipv6->hop_limit = LB_IP_TTL;
	}
}

/* To the packet's sender. */
static __always_inline void lb_ip_answer(void *header, const struct lb_packet *pkt, int protocol,
					 __u32 len, int is_ipv4)
{
	lb_ip_write(header, &pkt->tuple.daddr, &pkt->tuple.saddr, is_ipv4);
	lb_ip_complete(header, protocol, len, is_ipv4);
}

#endif
