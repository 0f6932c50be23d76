/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Transport headers: ports, and the flags that open and close a connection. */
#ifndef LB_TRANSPORT_H
#define LB_TRANSPORT_H

#include "packet.h"
#include "verdict.h"

/* RFC 9260, 3.2 */
#define LB_SCTP_INIT 1
#define LB_SCTP_INIT_ACK 2
#define LB_SCTP_ABORT 6
#define LB_SCTP_SHUTDOWN_COMPLETE 14

/* The common header and the start of the first chunk. */
struct lb_sctp {
	__be16 source;
	__be16 dest;
	__be32 tag;
	__le32 crc;
	__u8 chunk;
	__u8 chunk_flags;
	__be16 chunk_len;
};

/* How much of a transport header must be present. */
static __always_inline __u32 lb_transport_len(__u8 proto)
{
	if (proto == IPPROTO_TCP)
		return sizeof(struct tcphdr);
	return proto == IPPROTO_SCTP ? sizeof(struct lb_sctp) : sizeof(struct udphdr);
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

/* The TCP flags that correspond to the first chunk. */
static __always_inline __u8 lb_sctp_flags(__u8 chunk)
{
	if (chunk == LB_SCTP_INIT)
		return LB_TCP_SYN;
	if (chunk == LB_SCTP_INIT_ACK)
		return LB_TCP_SYN | LB_TCP_ACK;
	if (chunk == LB_SCTP_ABORT || chunk == LB_SCTP_SHUTDOWN_COMPLETE)
		return LB_TCP_RST;
	return LB_TCP_ACK;
}

/* The tag of the packet's receiver, or the one that an INIT ACK asks its receiver to use. */
static __always_inline int lb_parse_sctp_tag(struct lb_cursor *cur, struct lb_packet *pkt)
{
	struct lb_sctp *sctp = cur->pos;
	__be32 *initiate_tag = (void *)(sctp + 1);

	pkt->ack = bpf_ntohl(sctp->tag);
	if (sctp->chunk != LB_SCTP_INIT_ACK)
		return LB_NEXT;
	if ((void *)(initiate_tag + 1) > cur->end)
		return LB_PASS;
	pkt->ack = bpf_ntohl(*initiate_tag);
	return LB_NEXT;
}

static __always_inline int lb_parse_sctp(struct lb_cursor *cur, struct lb_packet *pkt)
{
	struct lb_sctp *sctp = cur->pos;

	if ((void *)(sctp + 1) > cur->end)
		return LB_PASS;
	pkt->tuple.sport = sctp->source;
	pkt->tuple.dport = sctp->dest;
	pkt->tcp_flags = lb_sctp_flags(sctp->chunk);
	pkt->crc = sctp->crc;
	pkt->header_len = sizeof(*sctp);
	return lb_parse_sctp_tag(cur, pkt);
}

/*
 * SCTP is rare, and saying so also changes the order of the code: the verifier then recognizes more
 * states as already seen, and explores a third to a half less.
 */
static __always_inline int lb_parse_l4(struct lb_cursor *cur, struct lb_packet *pkt)
{
	if (pkt->tuple.proto == IPPROTO_TCP)
		return lb_parse_tcp(cur, pkt);
	if (pkt->tuple.proto == IPPROTO_UDP)
		return lb_parse_udp(cur, pkt);
	if (__builtin_expect(pkt->tuple.proto == IPPROTO_SCTP, 0))
		return lb_parse_sctp(cur, pkt);
	return LB_PASS;
}

#endif
