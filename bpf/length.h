/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Whether a packet is as long as its headers say. One that is cut off, or that no receiver would
 * take, is not translated.
 */
#ifndef LB_LENGTH_H
#define LB_LENGTH_H

#include "packet.h"
#include "verdict.h"

/* What arrived may be more, with padding of the link. BIG TCP is too long for the IP header. */
static __always_inline int lb_parse_length(struct __sk_buff *skb, struct lb_packet *pkt, int l2)
{
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

/* How much there is behind the IP headers; negative when they are cut off. */
static __always_inline int lb_ip_payload(const struct lb_packet *pkt)
{
	return pkt->len - (pkt->l4 - pkt->l3);
}

/* Of the transport header, at the cursor; the rest of a fragment's datagram is elsewhere. */
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

#endif
