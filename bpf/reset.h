/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The TCP RST that answers a packet of an unknown connection. It is built in place. */
#ifndef LB_RESET_H
#define LB_RESET_H

#include "answer.h"
#include "csum.h"
#include "forward.h"
#include "packet.h"
#include "verdict.h"

struct lb_reset_v4 {
	struct iphdr ip;
	struct tcphdr tcp;
};

struct lb_reset_v6 {
	struct ipv6hdr ip;
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
					 const struct tcphdr *tcp, __u32 addresses)
{
	__be32 rest[2] = { bpf_htonl(sizeof(*tcp)), bpf_htonl(IPPROTO_TCP) };
	__u32 pseudo = bpf_csum_diff(NULL, 0, rest, sizeof(rest), addresses);
	__u32 header = bpf_csum_diff(NULL, 0, (__be32 *)tcp, sizeof(*tcp), 0);

	if (bpf_l4_csum_replace(skb, lb_csum_offset(pkt), 0, pseudo, BPF_F_PSEUDO_HDR))
		return -1;
	return bpf_l4_csum_replace(skb, lb_csum_offset(pkt), 0, header, 0);
}

static __always_inline int lb_reset_ipv4(struct __sk_buff *skb, const struct lb_packet *pkt)
{
	struct lb_reset_v4 out = {};

	lb_reset_fill(&out.tcp, pkt);
	lb_answer_ipv4(&out.ip, pkt, IPPROTO_TCP, sizeof(out));
	if (bpf_skb_change_tail(skb, pkt->l3 + sizeof(out), 0) ||
	    bpf_skb_store_bytes(skb, pkt->l3, &out, sizeof(out), 0))
		return -1;
	return lb_reset_csum(skb, pkt, &out.tcp,
			     bpf_csum_diff(NULL, 0, &out.ip.saddr, 2 * sizeof(__be32), 0));
}

static __always_inline int lb_reset_ipv6(struct __sk_buff *skb, const struct lb_packet *pkt)
{
	struct lb_reset_v6 out = {};

	lb_reset_fill(&out.tcp, pkt);
	lb_answer_ipv6(&out.ip, pkt, IPPROTO_TCP, sizeof(out.tcp));
	if (bpf_skb_change_tail(skb, pkt->l3 + sizeof(out), 0) ||
	    bpf_skb_store_bytes(skb, pkt->l3, &out, sizeof(out), 0))
		return -1;
	return lb_reset_csum(skb, pkt, &out.tcp,
			     bpf_csum_diff(NULL, 0, (__be32 *)&out.ip.saddr,
					   2 * sizeof(struct lb_addr), 0));
}

/*
 * LB_REDIRECT if the sender gets a RST. LB_NEXT: it does not, as the answer to a RST, to SCTP, and to
 * a packet with IP options or extension headers.
 */
static __always_inline int lb_reset(struct __sk_buff *skb, const struct lb_packet *pkt, int hook)
{
	if (pkt->tuple.proto != IPPROTO_TCP || pkt->tcp_flags & LB_TCP_RST || !lb_is_plain(pkt))
		return LB_NEXT;
	if (pkt->is_ipv4 ? lb_reset_ipv4(skb, pkt) : lb_reset_ipv6(skb, pkt))
		return LB_NEXT;
	return lb_return_to_sender(skb, pkt->l2, hook);
}

#endif
