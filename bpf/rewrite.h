/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Rewriting: one tuple becomes another. Addresses, ports, TTL and their checksums change in as few
 * calls as the headers allow. Direct packet pointers are invalid afterwards; pkt does not change.
 */
#ifndef LB_REWRITE_H
#define LB_REWRITE_H

#include "csum.h"
#include "packet.h"
#include "sctp_csum.h"
#include "verdict.h"

/* The end of an IPv4 header and, if it has no options, the ports after it. */
struct lb_ipv4_end {
	__u8 ttl;
	__u8 proto;
	__sum16 check;
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
};

#define LB_IPV4_END_HEADER offsetof(struct lb_ipv4_end, sport)

static __always_inline int lb_rewrite_ports(struct __sk_buff *skb, const struct lb_packet *pkt,
					    const struct lb_tuple *to)
{
	if (!lb_has_transport(pkt))
		return 0;
	return bpf_skb_store_bytes(skb, pkt->l4, (void *)&to->sport, 2 * sizeof(to->sport), 0);
}

/* size: how many bytes to store, all or LB_IPV4_END_HEADER. diff: of the addresses. */
static __always_inline int lb_rewrite_ipv4_end(struct __sk_buff *skb, const struct lb_packet *pkt,
					       const struct lb_tuple *to, __u8 ttl, __u32 diff,
					       int size)
{
	struct lb_ipv4_end end = {
		.ttl = ttl,
		.proto = pkt->tuple.proto,
		.check = lb_csum_ipv4(pkt, ttl, diff),
		.saddr = to->saddr.word[3],
		.daddr = to->daddr.word[3],
		.sport = to->sport,
		.dport = to->dport,
	};

	return bpf_skb_store_bytes(skb, pkt->l3 + offsetof(struct iphdr, ttl), &end, size, 0);
}

static __always_inline int lb_rewrite_ipv4(struct __sk_buff *skb, const struct lb_packet *pkt,
					   const struct lb_tuple *to, __u8 ttl, __u32 diff)
{
	if (lb_is_plain(pkt) && lb_has_transport(pkt))
		return lb_rewrite_ipv4_end(skb, pkt, to, ttl, diff, sizeof(struct lb_ipv4_end));
	if (lb_rewrite_ipv4_end(skb, pkt, to, ttl, diff, LB_IPV4_END_HEADER))
		return -1;
	return lb_rewrite_ports(skb, pkt, to);
}

/* RECOMPUTE_CSUM: IPv6 has no header checksum that would balance the change in skb->csum. */
static __always_inline int lb_rewrite_ipv6_header(struct __sk_buff *skb,
						  const struct lb_packet *pkt,
						  const struct lb_tuple *to, __u8 ttl)
{
	if (ttl != pkt->ttl &&
	    bpf_skb_store_bytes(skb, pkt->l3 + offsetof(struct ipv6hdr, hop_limit), &ttl,
				sizeof(ttl), BPF_F_RECOMPUTE_CSUM))
		return -1;
	return bpf_skb_store_bytes(skb, pkt->l3 + offsetof(struct ipv6hdr, saddr),
				   (void *)&to->saddr, 2 * sizeof(to->saddr), BPF_F_RECOMPUTE_CSUM);
}

static __always_inline int lb_rewrite_ipv6(struct __sk_buff *skb, const struct lb_packet *pkt,
					   const struct lb_tuple *to, __u8 ttl)
{
	if (lb_rewrite_ipv6_header(skb, pkt, to, ttl))
		return -1;
	return lb_rewrite_ports(skb, pkt, to);
}

/* addresses: the checksum difference of the addresses. */
static __always_inline int lb_rewrite_l4_csum(struct __sk_buff *skb, const struct lb_packet *pkt,
					      const struct lb_tuple *to, __u32 addresses)
{
	__u64 flags = lb_csum_flags(pkt);
	__u32 ports;

	if (pkt->tuple.proto == IPPROTO_SCTP)
		return lb_sctp_csum_defer(skb, pkt, to);
	ports = lb_csum_diff(&pkt->tuple.sport, &to->sport, 2 * sizeof(to->sport));
	if (bpf_l4_csum_replace(skb, lb_csum_offset(pkt), 0, addresses, BPF_F_PSEUDO_HDR | flags))
		return -1;
	return bpf_l4_csum_replace(skb, lb_csum_offset(pkt), 0, ports, flags);
}

/*
 * ttl: the new TTL or hop limit. In the difference of two mapped IPv4 addresses only the last word
 * counts. Only the first fragment of a datagram has the transport checksum.
 */
static __always_inline int lb_rewrite(struct __sk_buff *skb, const struct lb_packet *pkt,
				      const struct lb_tuple *to, __u8 ttl)
{
	__u32 diff = lb_csum_diff(&pkt->tuple.saddr, &to->saddr, 2 * sizeof(to->saddr));
	int error;

	if (lb_has_transport(pkt) && lb_rewrite_l4_csum(skb, pkt, to, diff))
		return -LB_DROP_REWRITE;
	if (pkt->is_ipv4)
		error = lb_rewrite_ipv4(skb, pkt, to, ttl, diff);
	else
		error = lb_rewrite_ipv6(skb, pkt, to, ttl);
	return error ? -LB_DROP_REWRITE : LB_NEXT;
}

#endif
