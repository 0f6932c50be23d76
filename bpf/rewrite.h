/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * One tuple becomes another: addresses, ports, TTL and their checksums, in as few calls as the
 * headers allow. Afterwards direct packet pointers are invalid; pkt stays what it was.
 */
#ifndef LB_REWRITE_H
#define LB_REWRITE_H

#include "addr.h"
#include "csum.h"
#include "parse.h"
#include "sctp_csum.h"
#include "verdict.h"

/* The end of an IPv4 header and, where it has no options, the ports behind it. */
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

/* size: what is stored of it, the whole or LB_IPV4_END_HEADER. diff: of the addresses. */
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

/* RECOMPUTE_CSUM: no header checksum makes up in skb->csum for what changes in an IPv6 header. */
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

/* addresses: the difference of the addresses. */
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
 * ttl: the new TTL or hop limit. diff: of a mapped IPv4 address only the end counts. The checksum
 * of a whole datagram is in its first fragment.
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
