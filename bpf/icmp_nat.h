/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * NAT of ICMP errors about translated packets: the quoted packet is restored to what the receiver
 * of the error sent, and the error gets the addresses that receiver knows, as in netfilter. No
 * length changes, so bytes after the quote stay as they are.
 */
#ifndef LB_ICMP_NAT_H
#define LB_ICMP_NAT_H

#include "addr.h"
#include "csum.h"
#include "icmp.h"
#include "maps.h"
#include "packet.h"
#include "parse.h"
#include "rewrite.h"
#include "tuple.h"

/* Both addresses and both ports, which are adjacent in struct lb_tuple. */
#define LB_TUPLE_ADDRS (2 * sizeof(struct lb_addr))
#define LB_TUPLE_ENDS (LB_TUPLE_ADDRS + 2 * sizeof(__be16))

static __always_inline int lb_icmp_parse_quote(struct lb_cursor *cur, struct lb_packet *quote)
{
	__be16 *ports;
	int verdict;

	verdict = quote->is_ipv4 ? lb_parse_ipv4(cur, quote) : lb_parse_ipv6(cur, quote);
	if (verdict)
		return verdict;
	quote->l4 += quote->l3;
	if (!lb_is_plain(quote) || quote->fragment)
		return LB_PASS;
	if (quote->tuple.proto != IPPROTO_TCP && quote->tuple.proto != IPPROTO_UDP &&
	    quote->tuple.proto != IPPROTO_SCTP)
		return LB_PASS;
	ports = cur->pos;
	quote->tuple.sport = ports[0];
	quote->tuple.dport = ports[1];
	quote->seq = bpf_ntohl(*(__be32 *)&ports[2]);
	lb_tuple_reverse(&quote->reverse, &quote->tuple);
	return LB_NEXT;
}

/* Loads the quoted headers, which may be outside the linear part. */
static __always_inline int lb_icmp_load_quote(struct __sk_buff *skb, const struct lb_packet *pkt,
					      struct lb_quote *quote)
{
	__u32 l3 = pkt->l4 + LB_ICMP_HEADER;

	if (l3 + lb_ip_len(pkt->is_ipv4) + LB_QUOTED_TRANSPORT > pkt->l3 + pkt->len)
		return -1;
	quote->pkt.is_ipv4 = pkt->is_ipv4;
	quote->pkt.l3 = l3;
	quote->pkt.fragment = 0;
	if (pkt->is_ipv4)
		return bpf_skb_load_bytes(skb, l3, quote->bytes,
					  sizeof(struct iphdr) + LB_QUOTED_TRANSPORT);
	return bpf_skb_load_bytes(skb, l3, quote->bytes,
				  sizeof(struct ipv6hdr) + LB_QUOTED_TRANSPORT);
}

/*
 * The quoted packet, with reverse filled: the key of a packet in the direction of the error. NULL if
 * this is not an error, if the quote is truncated or a fragment, or if the error does not go to the
 * sender of the quoted packet.
 */
static __always_inline struct lb_packet *lb_icmp_quote(struct __sk_buff *skb,
						       const struct lb_packet *pkt)
{
	struct lb_cursor cur;
	struct lb_quote *quote;
	__u8 type;

	if (!pkt->l4 || pkt->fragment ||
	    pkt->tuple.proto != (pkt->is_ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return NULL;
	if (bpf_skb_load_bytes(skb, pkt->l4, &type, sizeof(type)) || !lb_icmp_is_error(pkt, type))
		return NULL;
	quote = LB_SCRATCH(quote);
	if (!quote || lb_icmp_load_quote(skb, pkt, quote))
		return NULL;
	cur.pos = quote->bytes;
	cur.end = quote->bytes + sizeof(quote->bytes);
	if (lb_icmp_parse_quote(&cur, &quote->pkt) ||
	    !lb_addr_is_equal(&quote->pkt.tuple.saddr, &pkt->tuple.daddr))
		return NULL;
	return &quote->pkt;
}

/*
 * Whether the quote includes a transport checksum that must be updated. Nobody can verify an SCTP
 * checksum in a quote.
 */
static __always_inline int lb_icmp_quotes_csum(struct __sk_buff *skb, const struct lb_packet *pkt,
					       const struct lb_packet *quote)
{
	__u32 offset = lb_csum_offset(quote);
	__sum16 csum;

	if (quote->tuple.proto == IPPROTO_SCTP || offset + sizeof(csum) > pkt->l3 + pkt->len ||
	    bpf_skb_load_bytes(skb, offset, &csum, sizeof(csum)))
		return 0;
	return csum || quote->tuple.proto == IPPROTO_TCP;
}

static __always_inline int lb_icmp_store_quote(struct __sk_buff *skb, const struct lb_packet *quote,
					       const struct lb_tuple *to, __u32 addrs)
{
	if (quote->is_ipv4)
		return lb_rewrite_ipv4_end(skb, quote, to, quote->ttl, addrs,
					   sizeof(struct lb_ipv4_end));
	return bpf_skb_store_bytes(skb, quote->l3 + offsetof(struct ipv6hdr, saddr),
				   (void *)&to->saddr, LB_TUPLE_ENDS, 0);
}

/*
 * diff: the change of the whole quote, for the ICMP checksum. The quoted IPv4 header's own checksum
 * compensates for its addresses, and the quoted transport checksum for addresses and ports.
 */
static __always_inline int lb_icmp_rewrite_quote(struct __sk_buff *skb, const struct lb_packet *pkt,
						 struct lb_packet *quote, const struct lb_tuple *to,
						 __u32 addrs)
{
	__u32 ends = lb_csum_diff(&quote->reverse.saddr, &to->saddr, LB_TUPLE_ENDS);
	__u32 diff = ends;

	if (pkt->is_ipv4)
		diff = lb_csum_diff(&quote->reverse.sport, &to->sport, 2 * sizeof(to->sport));
	if (lb_icmp_quotes_csum(skb, pkt, quote)) {
		if (bpf_l4_csum_replace(skb, lb_csum_offset(quote), 0, ends, lb_csum_flags(quote)))
			return -1;
		diff = bpf_csum_diff(&ends, sizeof(ends), NULL, 0, diff);
	}
	lb_tuple_reverse(&quote->tuple, to);
	if (lb_icmp_store_quote(skb, quote, &quote->tuple, addrs))
		return -1;
	return bpf_l4_csum_replace(skb, pkt->l4 + offsetof(struct lb_icmp, csum), 0, diff, 0);
}

/* Rewrites the error's own addresses to those in pkt->to. Only ICMPv6 has a pseudo header. */
static __always_inline int lb_icmp_rewrite_header(struct __sk_buff *skb, struct lb_packet *pkt,
						  __u8 ttl)
{
	__u32 diff = lb_csum_diff(&pkt->tuple.saddr, &pkt->to.saddr, LB_TUPLE_ADDRS);

	if (pkt->is_ipv4)
		return lb_rewrite_ipv4_end(skb, pkt, &pkt->to, ttl, diff, LB_IPV4_END_HEADER);
	if (bpf_l4_csum_replace(skb, pkt->l4 + offsetof(struct lb_icmp, csum), 0, diff,
				BPF_F_PSEUDO_HDR))
		return -1;
	return lb_rewrite_ipv6_header(skb, pkt, &pkt->to, ttl);
}

/*
 * pkt->to: what a packet of the flow in the direction of the error becomes. If its source is
 * translated, so is the error's, even if a router sent it: packets that leave this node have one of
 * its addresses.
 */
static __always_inline int lb_icmp_rewrite(struct __sk_buff *skb, struct lb_packet *pkt,
					   struct lb_packet *quote, __u8 ttl)
{
	__u32 addrs = lb_csum_diff(&quote->reverse.saddr, &pkt->to.saddr, LB_TUPLE_ADDRS);
	int keeps_source = lb_addr_is_equal(&quote->reverse.saddr, &pkt->to.saddr);

	if (lb_icmp_rewrite_quote(skb, pkt, quote, &pkt->to, addrs))
		return -LB_DROP_REWRITE;
	if (keeps_source)
		pkt->to.saddr = pkt->tuple.saddr;
	return lb_icmp_rewrite_header(skb, pkt, ttl);
}

#endif
