/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Path MTU: how large a packet is on the wire, and the ICMP error for one that exceeds the MTU of
 * its route. The kernel's FIB lookup compares the two (forward.h).
 */
#ifndef LB_PATH_MTU_H
#define LB_PATH_MTU_H

#include "packet.h"

/* linux/skbuff.h: a list of SCTP packets, each with the size chosen by its sender. */
#define LB_GSO_BY_FRAGS 0xffff

/* RFC 791 and RFC 8200: the minimum that every link must carry, or every host must accept. */
#define LB_IPV4_LEAST_MTU 576
#define LB_IPV6_LEAST_MTU 1280

/* The largest resulting packet on the wire, without its link header; 0 if unknown. */
static __always_inline __u32 lb_wire_len(const struct lb_packet *pkt)
{
	if (pkt->gso_size == LB_GSO_BY_FRAGS)
		return 0;
	if (pkt->gso_size)
		return pkt->gso_size + pkt->header_len + pkt->l4 - pkt->l3;
	return pkt->len;
}

/* The MTU error: fragmentation needed (IPv4) or packet too big (IPv6). mtu: of the route. */
static __always_inline void lb_path_mtu_fill(struct lb_icmp *icmp, const struct lb_packet *pkt,
					     __u32 mtu)
{
	icmp->type = pkt->is_ipv4 ? ICMP_DEST_UNREACH : ICMPV6_PKT_TOOBIG;
	icmp->code = pkt->is_ipv4 ? ICMP_FRAG_NEEDED : 0;
	icmp->rest = bpf_htonl(mtu);
}

#endif
