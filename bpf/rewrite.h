/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * One tuple becomes another: addresses, ports and their checksums. What is equal is not written.
 * Afterwards direct packet pointers are invalid and pkt->tuple is the new tuple.
 */
#ifndef LB_REWRITE_H
#define LB_REWRITE_H

/* A changed IPv6 address needs RECOMPUTE_CSUM: no header checksum makes up for it in skb->csum. */
static __always_inline int lb_rewrite_addr(struct __sk_buff *skb, const struct lb_packet *pkt,
					   const struct lb_addr *from, const struct lb_addr *to,
					   int is_source)
{
	int offset = pkt->l3;

	if (lb_addr_is_equal(from, to))
		return 0;
	if (!pkt->is_ipv4) {
		offset += is_source ? offsetof(struct ipv6hdr, saddr) :
				      offsetof(struct ipv6hdr, daddr);
		return bpf_skb_store_bytes(skb, offset, (void *)to, sizeof(*to),
					   BPF_F_RECOMPUTE_CSUM);
	}
	if (bpf_l3_csum_replace(skb, offset + offsetof(struct iphdr, check), from->word[3],
				to->word[3], sizeof(__be32)))
		return -1;
	offset += is_source ? offsetof(struct iphdr, saddr) : offsetof(struct iphdr, daddr);
	return bpf_skb_store_bytes(skb, offset, (void *)&to->word[3], sizeof(__be32), 0);
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

static __always_inline int lb_rewrite_l4_csum(struct __sk_buff *skb, const struct lb_packet *pkt,
					      const struct lb_tuple *to)
{
	__s64 diff = lb_csum_diff_addr(&pkt->tuple.saddr, &to->saddr, 0);

	diff = lb_csum_diff_addr(&pkt->tuple.daddr, &to->daddr, diff);
	if (!diff)
		return 0;
	return bpf_l4_csum_replace(skb, lb_csum_offset(pkt), 0, diff,
				   BPF_F_PSEUDO_HDR | lb_csum_flags(pkt));
}

static __always_inline int lb_rewrite(struct __sk_buff *skb, struct lb_packet *pkt,
				      const struct lb_tuple *to)
{
	if (lb_rewrite_l4_csum(skb, pkt, to) ||
	    lb_rewrite_addr(skb, pkt, &pkt->tuple.saddr, &to->saddr, 1) ||
	    lb_rewrite_addr(skb, pkt, &pkt->tuple.daddr, &to->daddr, 0) ||
	    lb_rewrite_port(skb, pkt, pkt->tuple.sport, to->sport,
			    offsetof(struct udphdr, source)) ||
	    lb_rewrite_port(skb, pkt, pkt->tuple.dport, to->dport, offsetof(struct udphdr, dest)))
		return -LB_DROP_REWRITE;
	pkt->tuple = *to;
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
