/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What answers a dropped packet: a RST in the middle of a connection, else an ICMP error. That is
 * built in place: the packet becomes the error that quotes it. Like kube-proxy's REJECT it is port
 * unreachable for TCP too.
 */
#ifndef LB_REJECT_H
#define LB_REJECT_H

#include "csum.h"
#include "forward.h"
#include "icmp.h"
#include "ip_header.h"
#include "maps.h"
#include "packet.h"
#include "rate_limit.h"
#include "reset.h"
#include "transport.h"
#include "verdict.h"

/* The longest IPv4 header and the part of the transport header that an error must quote. */
#define LB_ICMP_QUOTE 68

/* The quote has the IP header and the part of the transport header that partial checksums need. */
struct lb_icmp_packet {
	struct lb_ip_room ip;
	struct lb_icmp icmp;
	__u8 quote[LB_ICMP_QUOTE];
};

/*
 * From 1 to LB_ICMP_QUOTE. The asm hides the limit from the compiler, which would otherwise check
 * one register and pass another; verifiers before 6.18 do not connect the two.
 */
static __always_inline __u32 lb_quote_len(const struct lb_packet *pkt)
{
	__u64 last = (__u16)(pkt->l4 - pkt->l3 + lb_transport_len(pkt->tuple.proto) - 1);

	if (last >= LB_ICMP_QUOTE)
		last = LB_ICMP_QUOTE - 1;
	asm volatile("" : "+r"(last));
	return last + 1;
}

/* Truncates the packet to the quote and makes room for the new headers in front of it. */
static __always_inline int lb_icmp_make_room(struct __sk_buff *skb, const struct lb_packet *pkt,
					     int quote, int header)
{
	if (bpf_skb_change_tail(skb, pkt->l3 + quote, 0))
		return -1;
	return bpf_skb_adjust_room(skb, header, BPF_ADJ_ROOM_MAC, 0);
}

/* The pseudo header of ICMPv6, RFC 8200 8.1: both addresses, the length, the next header. */
static __always_inline __u32 lb_icmp6_pseudo(const struct lb_packet *pkt, __u32 len)
{
	__be32 rest[2] = { bpf_htonl(len), bpf_htonl(IPPROTO_ICMPV6) };

	return bpf_csum_diff(NULL, 0, rest, sizeof(rest), lb_csum_of_addresses(pkt));
}

/* is_ipv4: a constant. */
static __always_inline int lb_reject_family(struct __sk_buff *skb, const struct lb_packet *pkt,
					    const struct lb_icmp *icmp, int is_ipv4)
{
	__u32 quote = lb_quote_len(pkt);
	struct lb_icmp_packet out = { .icmp = *icmp };
	int header = lb_ip_len(is_ipv4) + LB_ICMP_HEADER;
	void *ip = lb_ip_start(&out.ip, is_ipv4);
	__u32 pseudo = is_ipv4 ? 0 : lb_icmp6_pseudo(pkt, LB_ICMP_HEADER + quote);

	if (bpf_skb_load_bytes(skb, pkt->l3, out.quote, quote))
		return -1;
	lb_ip_answer(ip, pkt, is_ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6, LB_ICMP_HEADER + quote,
		     is_ipv4);
	out.icmp.csum = lb_csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&out.icmp,
						   LB_ICMP_HEADER + sizeof(out.quote), pseudo));
	if (lb_icmp_make_room(skb, pkt, quote, header))
		return -1;
	return bpf_skb_store_bytes(skb, pkt->l3, ip, header + quote, 0);
}

/* Limits the answers to a flood of requests. Like the kernel, it does not limit path MTU errors. */
static __always_inline int lb_reject_is_within_rate(int reason)
{
	if (reason == LB_DROP_TOO_BIG)
		return 1;
	return lb_is_within_rate(LB_SCRATCH(rejects), LB_REJECTS_PER_SECOND);
}

/* LB_REDIRECT if the sender gets an answer; LB_NEXT for other reasons and over the rate. */
static __always_inline int lb_reject(struct __sk_buff *skb, const struct lb_packet *pkt, int reason,
				     int hook, __u32 mtu)
{
	struct lb_icmp icmp;

	if (reason == LB_DROP_UNKNOWN_CONNECTION)
		return lb_reset(skb, pkt, hook);
	if (!lb_has_transport(pkt) || !lb_icmp_fill(&icmp, pkt, reason, mtu) ||
	    !lb_reject_is_within_rate(reason))
		return LB_NEXT;
	if (pkt->is_ipv4 ? lb_reject_family(skb, pkt, &icmp, 1) :
			   lb_reject_family(skb, pkt, &icmp, 0))
		return LB_NEXT;
	return lb_return_to_sender(skb, pkt->l2, hook);
}

#endif
