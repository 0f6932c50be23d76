/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * From bytes to struct lb_packet. Every lb_parse_* step checks its bounds, fills the packet, moves
 * the cursor and returns LB_NEXT, or LB_PASS for what is not ours: another protocol, a fragment,
 * IP options or extension headers, a truncated header, a mapped address on the wire.
 */
#ifndef LB_PACKET_H
#define LB_PACKET_H

#include "addr.h"
#include "types.h"
#include "verdict.h"

#define LB_TCP_FIN 0x01
#define LB_TCP_SYN 0x02
#define LB_TCP_RST 0x04
#define LB_TCP_ACK 0x10

#define LB_IPV4_FRAGMENT 0x3fff /* more fragments, or an offset */

struct lb_cursor {
	void *pos;
	void *end;
};

/*
 * l3 and l4 are offsets from skb->data; l2 is the length of the link header, len of the IP packet.
 * seq and ack: of TCP, host byte order.
 * peer: the key of the other direction, once it was needed; one place, because the stack is small.
 */
struct lb_packet {
	struct lb_tuple tuple;
	struct lb_tuple peer;
	__u32 len;
	__u32 seq;
	__u32 ack;
	__u16 l3;
	__u16 l4;
	__u16 header_len;
	__u8 is_ipv4;
	__u8 ttl;
	__u8 tcp_flags;
	__u8 l2;
};

static __always_inline int lb_parse_ipv4(struct lb_cursor *cur, struct lb_packet *pkt)
{
	struct iphdr *ip = cur->pos;

	if ((void *)(ip + 1) > cur->end || ip->version != 4 || ip->ihl != 5)
		return LB_PASS;
	if (ip->frag_off & bpf_htons(LB_IPV4_FRAGMENT))
		return LB_PASS;
	lb_addr_from_ipv4(&pkt->tuple.saddr, ip->saddr);
	lb_addr_from_ipv4(&pkt->tuple.daddr, ip->daddr);
	pkt->tuple.proto = ip->protocol;
	pkt->ttl = ip->ttl;
	pkt->len = bpf_ntohs(ip->tot_len);
	pkt->is_ipv4 = 1;
	cur->pos = ip + 1;
	return LB_NEXT;
}

static __always_inline int lb_parse_ipv6(struct lb_cursor *cur, struct lb_packet *pkt)
{
	struct ipv6hdr *ip = cur->pos;

	if ((void *)(ip + 1) > cur->end || ip->version != 6)
		return LB_PASS;
	__builtin_memcpy(&pkt->tuple.saddr, &ip->saddr, sizeof(struct lb_addr));
	__builtin_memcpy(&pkt->tuple.daddr, &ip->daddr, sizeof(struct lb_addr));
	if (lb_addr_is_ipv4(&pkt->tuple.saddr) || lb_addr_is_ipv4(&pkt->tuple.daddr))
		return LB_PASS;
	pkt->tuple.proto = ip->nexthdr;
	pkt->ttl = ip->hop_limit;
	pkt->len = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	pkt->is_ipv4 = 0;
	cur->pos = ip + 1;
	return LB_NEXT;
}

static __always_inline int lb_parse_tcp(struct lb_cursor *cur, struct lb_packet *pkt)
{
	struct tcphdr *tcp = cur->pos;

	if ((void *)(tcp + 1) > cur->end)
		return LB_PASS;
	pkt->tuple.sport = tcp->source;
	pkt->tuple.dport = tcp->dest;
	pkt->tcp_flags = ((__u8 *)tcp)[13];
	pkt->seq = bpf_ntohl(tcp->seq);
	pkt->ack = bpf_ntohl(tcp->ack_seq);
	pkt->header_len = tcp->doff * 4;
	return LB_NEXT;
}

static __always_inline int lb_parse_udp(struct lb_cursor *cur, struct lb_packet *pkt)
{
	struct udphdr *udp = cur->pos;

	if ((void *)(udp + 1) > cur->end)
		return LB_PASS;
	pkt->tuple.sport = udp->source;
	pkt->tuple.dport = udp->dest;
	pkt->header_len = sizeof(*udp);
	return LB_NEXT;
}

static __always_inline int lb_parse_l4(struct lb_cursor *cur, struct lb_packet *pkt)
{
	if (pkt->tuple.proto == IPPROTO_TCP)
		return lb_parse_tcp(cur, pkt);
	if (pkt->tuple.proto == IPPROTO_UDP)
		return lb_parse_udp(cur, pkt);
	return LB_PASS;
}

/* Headers may lie outside the linear part: pull them in before the cursor is made. */
static __always_inline void lb_cursor_init(struct lb_cursor *cur, struct __sk_buff *skb, int l3)
{
	__u32 need = l3 + sizeof(struct tcphdr);

	need += skb->protocol == bpf_htons(ETH_P_IP) ? sizeof(struct iphdr) :
						       sizeof(struct ipv6hdr);
	if (need > skb->len)
		need = skb->len;
	if ((void *)(long)skb->data + need > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, need);
	cur->pos = (void *)(long)skb->data + l3;
	cur->end = (void *)(long)skb->data_end;
}

/* l2: length of the link header in front of the IP header, a constant of the caller. */
static __always_inline int lb_parse(struct __sk_buff *skb, struct lb_packet *pkt, int l2)
{
	struct lb_cursor cur;
	int verdict;

	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return LB_PASS;
	__builtin_memset(pkt, 0, sizeof(*pkt));
	lb_cursor_init(&cur, skb, l2);
	if (skb->protocol == bpf_htons(ETH_P_IP))
		verdict = lb_parse_ipv4(&cur, pkt);
	else
		verdict = lb_parse_ipv6(&cur, pkt);
	if (verdict)
		return verdict;
	/* Smaller than what arrived: padding of the link. Larger: truncated, or BIG TCP. */
	if (pkt->len > skb->len - l2 || skb->gso_size)
		pkt->len = skb->len - l2;
	pkt->l2 = l2;
	pkt->l3 = l2;
	pkt->l4 = l2 + (pkt->is_ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	return lb_parse_l4(&cur, pkt);
}

static __always_inline int lb_tuple_is_equal(const struct lb_tuple *a, const struct lb_tuple *b)
{
	return a->sport == b->sport && a->dport == b->dport && a->proto == b->proto &&
	       lb_addr_is_equal(&a->saddr, &b->saddr) && lb_addr_is_equal(&a->daddr, &b->daddr);
}

static __always_inline int lb_tuple_is_reverse(const struct lb_tuple *a, const struct lb_tuple *b)
{
	return a->sport == b->dport && a->dport == b->sport && a->proto == b->proto &&
	       lb_addr_is_equal(&a->saddr, &b->daddr) && lb_addr_is_equal(&a->daddr, &b->saddr);
}

static __always_inline void lb_tuple_reverse(struct lb_tuple *out, const struct lb_tuple *in)
{
	out->saddr = in->daddr;
	out->daddr = in->saddr;
	out->sport = in->dport;
	out->dport = in->sport;
	out->proto = in->proto;
	out->pad[0] = 0;
	out->pad[1] = 0;
	out->pad[2] = 0;
}

#endif
