/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What is known of a packet once it is parsed, and where parsing stands meanwhile. */
#ifndef LB_PACKET_H
#define LB_PACKET_H

#include "types.h"

#define LB_TCP_FIN 0x01
#define LB_TCP_SYN 0x02
#define LB_TCP_RST 0x04
#define LB_TCP_ACK 0x10

enum lb_fragment_place {
	LB_FRAGMENT_FIRST = 1,
	LB_FRAGMENT_LATER = 2, /* without a transport header */
};

struct lb_cursor {
	void *pos;
	void *end;
};

/*
 * l3 and l4 are offsets from skb->data; l2 is the length of the link header, len of the IP packet.
 * check: of the IPv4 header. seq and ack: of TCP, host byte order. crc: of SCTP, as it stands there.
 * tcp_flags: of SCTP, what its first chunk amounts to.
 * peer: the key of the other direction, once it was needed; one place, because the stack is small.
 * segs: packets on the wire.
 * fragment: enum lb_fragment_place, 0 for a whole packet; id: the identification of its datagram.
 */
struct lb_packet {
	struct lb_tuple tuple;
	struct lb_tuple peer;
	__u32 len;
	union {
		__u32 seq;
		__le32 crc;
	};
	__u32 ack;
	__u16 l3;
	__u16 l4;
	__u16 header_len;
	__sum16 check;
	__u8 is_ipv4;
	__u8 ttl;
	__u8 tcp_flags;
	__u8 l2;
	__be32 id;
	__u8 fragment;
	__u8 pad;
	__u16 segs;
};

/* Bytes of a transport header that every ICMP error quotes: the ports are among them. */
#define LB_QUOTED_TRANSPORT 8

#define LB_ICMP_HEADER 8

/* rest: the second word of the ICMP header, the MTU of the next hop for "too big". */
struct lb_icmp {
	__u8 type;
	__u8 code;
	__be16 csum;
	__be32 rest;
};

/* A packet that an ICMP error quotes, and its first bytes. */
struct lb_quote {
	struct lb_packet pkt;
	__u8 bytes[sizeof(struct ipv6hdr) + LB_QUOTED_TRANSPORT];
};

/* ports: what of them differs, 0 for no change. from_end: of the packet to its checksum, in bytes. */
struct lb_sctp_change {
	__be32 ports;
	__le32 crc;
	__u32 len;
	__u32 from_end;
};

/* A flow as it ended: the entry of the packet that ended it, the other one, and the packet's key. */
struct lb_ending {
	struct lb_conntrack entries[2];
	struct lb_tuple key;
	__u32 end;
};

/* Without options or extension headers. */
static __always_inline int lb_is_plain(const struct lb_packet *pkt)
{
	return pkt->l4 - pkt->l3 == (pkt->is_ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
}

/* Bytes behind the transport header; of SCTP, behind that of the first chunk. */
static __always_inline __u32 lb_payload(const struct lb_packet *pkt)
{
	__s32 len = pkt->len - (pkt->l4 - pkt->l3) - pkt->header_len;

	return len > 0 ? len : 0;
}

static __always_inline int lb_has_transport(const struct lb_packet *pkt)
{
	return pkt->fragment != LB_FRAGMENT_LATER;
}

#endif
