/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The TCP RST that answers a packet of an unknown connection. It is built in place. */
#ifndef LB_RESET_H
#define LB_RESET_H

#include "csum.h"
#include "forward.h"
#include "ip_header.h"
#include "packet.h"
#include "verdict.h"

struct lb_reset_packet {
	struct lb_ip_room ip;
	struct tcphdr tcp;
};

/* RFC 9293, 3.10.7.1: with the numbers that the sender accepts. */
static __always_inline void lb_reset_fill(struct tcphdr *tcp, const struct lb_packet *pkt)
{
	tcp->source = pkt->tuple.dport;
	tcp->dest = pkt->tuple.sport;
	tcp->doff = sizeof(*tcp) / 4;
	tcp->rst = 1;
	if (pkt->tcp_flags & LB_TCP_ACK) {
		tcp->seq = bpf_htonl(pkt->ack);
		return;
	}
	tcp->ack = 1;
	tcp->ack_seq = bpf_htonl(lb_tcp_end(pkt));
}

/*
 * Into a checksum that is zero. If the sender has left its packet's checksum to the device, the
 * helper adds the pseudo header only: the device adds the rest.
 */
static __always_inline int lb_reset_csum(struct __sk_buff *skb, const struct lb_packet *pkt,
					 const struct tcphdr *tcp)
{
	__be32 rest[2] = { bpf_htonl(sizeof(*tcp)), bpf_htonl(IPPROTO_TCP) };
	__u32 addresses = lb_csum_of_addresses(pkt);
	__u32 pseudo = bpf_csum_diff(NULL, 0, rest, sizeof(rest), addresses);
	__u32 header = bpf_csum_diff(NULL, 0, (__be32 *)tcp, sizeof(*tcp), 0);

	if (bpf_l4_csum_replace(skb, lb_csum_offset(pkt), 0, pseudo, BPF_F_PSEUDO_HDR))
		return -1;
	return bpf_l4_csum_replace(skb, lb_csum_offset(pkt), 0, header, 0);
}

/* is_ipv4: a constant. */
static __always_inline int lb_reset_family(struct __sk_buff *skb, const struct lb_packet *pkt,
					   int is_ipv4)
{
	struct lb_reset_packet out = {};
	void *ip = lb_ip_start(&out.ip, is_ipv4);
	__u32 len = lb_ip_len(is_ipv4) + sizeof(out.tcp);

	lb_reset_fill(&out.tcp, pkt);
	lb_ip_answer(ip, pkt, IPPROTO_TCP, sizeof(out.tcp), is_ipv4);
	if (bpf_skb_change_tail(skb, pkt->l3 + len, 0) ||
	    bpf_skb_store_bytes(skb, pkt->l3, ip, len, 0))
		return -1;
	return lb_reset_csum(skb, pkt, &out.tcp);
}

/*
 * LB_REDIRECT if the sender gets a RST. LB_NEXT: it does not, as the answer to a RST, to SCTP, and to
 * a packet with IP options or extension headers.
 */
static __always_inline int lb_reset(struct __sk_buff *skb, const struct lb_packet *pkt, int hook)
{
	if (pkt->tuple.proto != IPPROTO_TCP || pkt->tcp_flags & LB_TCP_RST || !lb_is_plain(pkt))
		return LB_NEXT;
	if (pkt->is_ipv4 ? lb_reset_family(skb, pkt, 1) : lb_reset_family(skb, pkt, 0))
		return LB_NEXT;
	return lb_return_to_sender(skb, pkt->l2, hook);
}

#endif
