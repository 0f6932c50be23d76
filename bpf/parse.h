/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Parsing: from bytes to struct lb_packet. Every lb_parse_* step checks its bounds, fills the
 * packet, moves the cursor and returns LB_NEXT; or LB_PASS for packets that pass untouched: another
 * protocol, a truncated header, a mapped address on the wire, a VLAN tag.
 */
#ifndef LB_PARSE_H
#define LB_PARSE_H

#include "addr.h"
#include "clock.h"
#include "ipv6_extension.h"
#include "packet.h"
#include "transport.h"
#include "verdict.h"

#define LB_IPV4_FRAGMENT 0x3fff /* more fragments, or an offset */
#define LB_IPV4_OFFSET 0x1fff
#define LB_IPV4_DF_BIT 14

#define LB_VLAN_ID 0x0fff

/* Larger than any offset. The verifier only knows that pkt->l4 has 16 bits. */
#define LB_L4_MASK 0x3fff

static __always_inline void lb_parse_ipv4_fragment(const struct iphdr *ip, struct lb_packet *pkt)
{
	if (!(ip->frag_off & bpf_htons(LB_IPV4_FRAGMENT)))
		return;
	pkt->fragment = ip->frag_off & bpf_htons(LB_IPV4_OFFSET) ? LB_FRAGMENT_LATER :
								   LB_FRAGMENT_FIRST;
	pkt->id = ip->id;
}

/*
 * Like lb_parse_ipv6(): sets pkt->l4 to the header length and moves the cursor past the fixed part.
 */
static __always_inline int lb_parse_ipv4(struct lb_cursor *cur, struct lb_packet *pkt)
{
	struct iphdr *ip = cur->pos;

	if ((void *)(ip + 1) > cur->end || ip->version != 4 || ip->ihl < 5)
		return LB_PASS;
	lb_parse_ipv4_fragment(ip, pkt);
	lb_addr_from_ipv4(&pkt->tuple.saddr, ip->saddr);
	lb_addr_from_ipv4(&pkt->tuple.daddr, ip->daddr);
	pkt->tuple.proto = ip->protocol;
	pkt->ttl = ip->ttl;
	pkt->check = ip->check;
	pkt->len = bpf_ntohs(ip->tot_len);
	pkt->is_ipv4 = 1;
	/* Without a branch, or the verifier would explore both sides to the end. */
	pkt->routing = ~bpf_ntohs(ip->frag_off) >> LB_IPV4_DF_BIT & LB_MAY_FRAGMENT;
	pkt->l4 = ip->ihl * 4;
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
	pkt->l4 = sizeof(*ip);
	cur->pos = ip + 1;
	return LB_NEXT;
}

/*
 * How much of a transport header is pulled in. Of UDP not more than the header: behind it may be
 * another datagram of a list made by GRO (rx-gro-list), which the kernel cannot segment when a part of
 * it was pulled (skb_segment_list()).
 */
static __always_inline __u32 lb_pull_len(__u8 proto)
{
	return proto == IPPROTO_UDP ? sizeof(struct udphdr) : sizeof(struct tcphdr);
}

/* Rarely needed. need: with the longest transport header. */
static __always_inline void lb_pull_rest(struct __sk_buff *skb, int l3, __u32 need)
{
	int at = skb->protocol == bpf_htons(ETH_P_IP) ? offsetof(struct iphdr, protocol) :
							offsetof(struct ipv6hdr, nexthdr);
	__u8 proto;

	if (bpf_skb_load_bytes(skb, l3 + at, &proto, sizeof(proto)))
		return;
	need -= sizeof(struct tcphdr) - lb_pull_len(proto);
	if (need > skb->len)
		need = skb->len;
	if ((void *)(long)skb->data + need > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, need);
}

/* Headers may be outside the linear part: pulls them in, which invalidates packet pointers. */
static __always_inline void lb_pull_headers(struct __sk_buff *skb, int l3)
{
	__u32 need = l3 + sizeof(struct tcphdr);
	__u32 present;

	need += skb->protocol == bpf_htons(ETH_P_IP) ? sizeof(struct iphdr) :
						       sizeof(struct ipv6hdr);
	present = need > skb->len ? skb->len : need;
	if ((void *)(long)skb->data + present > (void *)(long)skb->data_end)
		lb_pull_rest(skb, l3, need);
}

static __always_inline void lb_cursor_init(struct lb_cursor *cur, struct __sk_buff *skb, int l3)
{
	lb_pull_headers(skb, l3);
	cur->pos = (void *)(long)skb->data + l3;
	cur->end = (void *)(long)skb->data_end;
}

/* Moves past options or extension headers, which are rarely in the linear part. */
static __always_inline void lb_cursor_to_l4(struct lb_cursor *cur, struct __sk_buff *skb, int l4,
					    __u8 proto)
{
	__u32 need = l4 + lb_pull_len(proto);

	bpf_skb_pull_data(skb, need > skb->len ? skb->len : need);
	/* Otherwise the compiler, which knows more than the verifier, may drop the mask. */
	asm volatile("" : "+r"(l4));
	cur->pos = (void *)(long)skb->data + (l4 & LB_L4_MASK);
	cur->end = (void *)(long)skb->data_end;
}

static __always_inline int lb_parse_extensions(struct __sk_buff *skb, struct lb_packet *pkt)
{
	struct lb_extension_walk walk = { .offset = pkt->l4, .proto = pkt->tuple.proto };

	if (lb_extension_skip_all(skb, &walk))
		return LB_PASS;
	pkt->l4 = walk.offset;
	pkt->tuple.proto = walk.proto;
	pkt->fragment = walk.fragment;
	pkt->id = walk.id;
	return LB_NEXT;
}

/* skb->len may include link padding. The length of BIG TCP does not fit into the IP header. */
static __always_inline int lb_parse_length(struct __sk_buff *skb, struct lb_packet *pkt, int l2)
{
	pkt->ifindex = skb->ifindex;
	pkt->gso_size = skb->gso_size;
	pkt->segs = 1;
	if (skb->gso_size) {
		pkt->len = skb->len - l2;
		pkt->segs = skb->gso_segs ? skb->gso_segs : 1;
	}
	if (pkt->len <= skb->len - l2)
		return LB_NEXT;
	pkt->l4 = 0;
	return LB_PASS;
}

/* Bytes after the IP headers; negative if they are truncated. */
static __always_inline int lb_ip_payload(const struct lb_packet *pkt)
{
	return pkt->len - (pkt->l4 - pkt->l3);
}

/* Whether transport header (at the cursor) and payload are complete; for a fragment, the header. */
static __always_inline int lb_is_complete(const struct lb_cursor *cur, const struct lb_packet *pkt)
{
	struct udphdr *udp = cur->pos;
	int least = pkt->header_len;
	int len = pkt->header_len;

	if (pkt->tuple.proto == IPPROTO_TCP) {
		least = sizeof(struct tcphdr);
	} else if (pkt->tuple.proto == IPPROTO_UDP) {
		if ((void *)(udp + 1) > cur->end)
			return 0;
		len = bpf_ntohs(udp->len);
	}
	if (len < least || lb_ip_payload(pkt) < least)
		return 0;
	return pkt->fragment || len <= lb_ip_payload(pkt);
}

/* A first fragment does not show which bytes the segment's FIN covers, so the FIN is ignored. */
static __always_inline int lb_parse_transport(struct __sk_buff *skb, struct lb_packet *pkt,
					      struct lb_cursor *cur)
{
	if (lb_ip_payload(pkt) < 0)
		return LB_PASS;
	if (!lb_has_transport(pkt))
		return LB_NEXT;
	if (!lb_is_plain(pkt))
		lb_cursor_to_l4(cur, skb, pkt->l4, pkt->tuple.proto);
	if (lb_parse_l4(cur, pkt) || !lb_is_complete(cur, pkt))
		return LB_PASS;
	if (pkt->fragment)
		pkt->tcp_flags &= ~LB_TCP_FIN;
	return LB_NEXT;
}

/* l2: length of the link header before the IP header, a constant of the caller. */
static __always_inline int lb_parse(struct __sk_buff *skb, struct lb_packet *pkt, int l2)
{
	struct lb_cursor cur;
	int verdict;

	__builtin_memset(pkt, 0, sizeof(*pkt));
	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return LB_PASS;
	if (skb->vlan_present && skb->vlan_tci & LB_VLAN_ID)
		return LB_PASS;
	lb_cursor_init(&cur, skb, l2);
	if (skb->protocol == bpf_htons(ETH_P_IP))
		verdict = lb_parse_ipv4(&cur, pkt);
	else
		verdict = lb_parse_ipv6(&cur, pkt);
	if (verdict)
		return verdict;
	if (lb_parse_length(skb, pkt, l2))
		return LB_PASS;
	pkt->now = lb_now();
	pkt->l2 = l2;
	pkt->l3 = l2;
	pkt->l4 += l2;
	if (!pkt->is_ipv4 && lb_is_extension(pkt->tuple.proto) && lb_parse_extensions(skb, pkt))
		return LB_PASS;
	return lb_parse_transport(skb, pkt, &cur);
}

#endif
