/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * One tuple becomes another: addresses, ports and their checksums. What is equal is not written.
 * Afterwards direct packet pointers are invalid; pkt->tuple stays what it was.
 */
#ifndef LB_REWRITE_H
#define LB_REWRITE_H

#include "addr.h"
#include "csum.h"
#include "packet.h"
#include "verdict.h"

static __always_inline int lb_rewrite_ipv4(struct __sk_buff *skb, const struct lb_packet *pkt,
					   __be32 from, __be32 to, int offset)
{
	if (bpf_l4_csum_replace(skb, lb_csum_offset(pkt), from, to,
				BPF_F_PSEUDO_HDR | lb_csum_flags(pkt) | sizeof(to)) ||
	    bpf_l3_csum_replace(skb, pkt->l3 + offsetof(struct iphdr, check), from, to, sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, pkt->l3 + offset, &to, sizeof(to), 0);
}

/* RECOMPUTE_CSUM: no header checksum makes up for a changed IPv6 address in skb->csum. */
static __always_inline int lb_rewrite_ipv6(struct __sk_buff *skb, const struct lb_packet *pkt,
					   const struct lb_addr *from, const struct lb_addr *to,
					   int offset)
{
	__s64 diff = bpf_csum_diff((__be32 *)from, sizeof(*from), (__be32 *)to, sizeof(*to), 0);

	if (bpf_l4_csum_replace(skb, lb_csum_offset(pkt), 0, diff,
				BPF_F_PSEUDO_HDR | lb_csum_flags(pkt)))
		return -1;
	return bpf_skb_store_bytes(skb, pkt->l3 + offset, (void *)to, sizeof(*to),
				   BPF_F_RECOMPUTE_CSUM);
}

static __always_inline int lb_rewrite_addr(struct __sk_buff *skb, const struct lb_packet *pkt,
					   const struct lb_addr *from, const struct lb_addr *to,
					   int is_source)
{
	if (lb_addr_is_equal(from, to))
		return 0;
	if (pkt->is_ipv4)
		return lb_rewrite_ipv4(skb, pkt, from->word[3], to->word[3],
				       is_source ? offsetof(struct iphdr, saddr) :
						   offsetof(struct iphdr, daddr));
	return lb_rewrite_ipv6(skb, pkt, from, to,
			       is_source ? offsetof(struct ipv6hdr, saddr) :
					   offsetof(struct ipv6hdr, daddr));
}

static __always_inline int lb_rewrite_port(struct __sk_buff *skb, const struct lb_packet *pkt,
					   __be16 from, __be16 to, int offset)
{
	if (from == to)
		return 0;
	if (bpf_l4_csum_replace(skb, lb_csum_offset(pkt), from, to,
				lb_csum_flags(pkt) | sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, pkt->l4 + offset, &to, sizeof(to), 0);
}

static __always_inline int lb_rewrite(struct __sk_buff *skb, const struct lb_packet *pkt,
				      const struct lb_tuple *to)
{
	if (lb_rewrite_addr(skb, pkt, &pkt->tuple.saddr, &to->saddr, 1) ||
	    lb_rewrite_addr(skb, pkt, &pkt->tuple.daddr, &to->daddr, 0) ||
	    lb_rewrite_port(skb, pkt, pkt->tuple.sport, to->sport,
			    offsetof(struct udphdr, source)) ||
	    lb_rewrite_port(skb, pkt, pkt->tuple.dport, to->dport, offsetof(struct udphdr, dest)))
		return -LB_DROP_REWRITE;
	return LB_NEXT;
}

/* TTL or hop limit minus one; the caller has refused a packet that has none left. */
static __always_inline int lb_rewrite_ttl(struct __sk_buff *skb, const struct lb_packet *pkt)
{
	__be16 from = bpf_htons((pkt->ttl << 8) | pkt->tuple.proto);
	__be16 to = bpf_htons(((pkt->ttl - 1) << 8) | pkt->tuple.proto);
	__u8 hop_limit = pkt->ttl - 1;

	if (!pkt->is_ipv4)
		return bpf_skb_store_bytes(skb, pkt->l3 + offsetof(struct ipv6hdr, hop_limit),
					   &hop_limit, sizeof(hop_limit), BPF_F_RECOMPUTE_CSUM);
	if (bpf_l3_csum_replace(skb, pkt->l3 + offsetof(struct iphdr, check), from, to, sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, pkt->l3 + offsetof(struct iphdr, ttl), &to, sizeof(to), 0);
}

#endif
