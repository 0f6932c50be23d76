/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* struct lb_packet, a parsed packet, and the structs of packets that scratch maps hold. */
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

enum lb_packet_routing {
	LB_MAY_FRAGMENT = 1 << 0, /* IPv4 without DF */
	LB_VIA_STACK = 1 << 1,    /* the stack routes it: see stack_route.h */
	LB_IS_ERROR = 1 << 2,     /* an ICMP error, with the tuple of its flow: see dsr_error.h */
	LB_IS_RETURNED = 1 << 3,  /* the pod's node sends it back: see lb_tunnel_return() */
	LB_IS_RETRY = 1 << 4,     /* it opens its flow again: see lb_retry_leave() */
};

struct lb_cursor {
	void *pos;
	void *end;
};

/* What takes the place of a tuple where a packet goes in a tunnel: the pod, and the pod's node. */
struct lb_tunneled {
	struct lb_addr node;
	struct lb_addr pod;
	__be16 unused;
	__be16 port;
	__u8 proto;
	__u8 pad[3];
};

/*
 * l3 and l4 are offsets from skb->data; l2 is the length of the link header, len that of the IP
 * packet. check: of the IPv4 header. seq: of TCP; ack: of TCP, or the tag of SCTP, which proves that
 * the sender has seen the other side's first packet; of an INIT ACK the tag that it asks for. Both in
 * host byte order. crc: of SCTP, in its own byte order. tcp_flags: for SCTP, those equivalent to the
 * first chunk. reverse, to, tunneled, datagram: once needed; in one place, because the stack is
 * small. segs: packets on the wire. fragment: enum lb_fragment_place, 0 for a whole packet; id: the
 * identification of its datagram. routing: enum lb_packet_routing. ifindex: the device of the hook.
 * gso_size: as in the skb. now: when the packet was parsed (lb_now()).
 */
struct lb_packet {
	struct lb_tuple tuple;
	union {
		struct lb_tuple reverse;     /* the key of the other direction */
		struct lb_tuple to;          /* what the packet becomes */
		struct lb_tunneled tunneled; /* or where it goes in a tunnel */
		struct lb_tuple datagram;    /* the key of its fragments */
	};
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
	__u8 routing;
	__u16 segs;
	__u32 ifindex;
	__u32 gso_size;
	__u64 now;
};

/* Every ICMP error quotes this much of a transport header; the ports are part of it. */
#define LB_QUOTED_TRANSPORT 8

#define LB_ICMP_HEADER 8

/* rest: the second word of the ICMP header; for "too big" the MTU of the next hop. */
struct lb_icmp {
	__u8 type;
	__u8 code;
	__be16 csum;
	__be32 rest;
};

/*
 * What a packet of a known flow becomes, or where it goes in a tunnel: copied from its entry, which may
 * move meanwhile.
 */
struct lb_known_flow {
	union {
		struct lb_tuple to;
		struct lb_tunneled tunneled;
	};
	__u32 flags;
	__u32 ifindex;
	__u32 direction;
	__u32 is_refusal; /* of a connection that may be retried */
};

/*
 * For a connection that is retried. failed: 1 + the index of the backend that it leaves, 0 for none;
 * first: the one before that, and tried of the new flow: see lb_conntrack.tried.
 */
struct lb_retry {
	__u32 failed;
	__u8 first;
	__u8 tried;
};

/* A new flow: what its packets become, and the hook where its replies are reversed. */
struct lb_flow {
	union {
		struct lb_tuple to;
		struct lb_tunneled tunneled;
	};
	__u32 service;
	__u32 backend;
	__u32 serial;
	__u32 ifindex;
	__u32 frontend;
	__u32 desc_flags;
	__u8 reply_hook;
	__u8 hook;
	__u8 flags;
	struct lb_retry retry;
};

/* Time without a packet of the flow that has the port, ns; the port in network byte order. */
struct lb_silent_port {
	__s64 silence;
	__be16 port;
};

/* What bpf_fib_lookup() is asked: the first words of its parameters. */
#define LB_QUESTION_WORDS (offsetof(struct bpf_fib_lookup, h_vlan_proto) / sizeof(__u64))

/* A question and the kernel's answer. found: CLOCK_MONOTONIC, ns; 0 for none. */
struct lb_next_hop {
	__u64 question[LB_QUESTION_WORDS];
	struct bpf_fib_lookup answer;
	__u64 found;
	__u64 pad;
};

/* A packet that an ICMP error quotes, and its first bytes. */
struct lb_quote {
	struct lb_packet pkt;
	__u8 bytes[sizeof(struct ipv6hdr) + LB_QUOTED_TRANSPORT];
};

/* ports: old XOR new, 0 for no change. from_end: bytes from the checksum to the packet's end. */
struct lb_sctp_change {
	__be32 ports;
	__le32 crc;
	__u32 len;
	__u32 from_end;
};

/*
 * A flow that has ended: the entry of the packet that ended it, the other entry, the packet's key.
 */
struct lb_ended_flow {
	struct lb_conntrack entries[2];
	struct lb_tuple key;
	__u32 end;
};

/* A packet that the stack will route, and its reverse: see lb_stack_enter(). */
struct lb_stack_scratch {
	struct lb_tuple between;
	struct lb_tuple reverse;
	struct lb_stack_nat nat;
};

/*
 * Geneve with one option. options, length: in 4-byte words, without their own headers. pod and
 * port: the packet's destination on its node. answer: see lb_geneve_answer(); with an inner packet,
 * whether it is returned. key: in words, because the header is not aligned to 8 bytes.
 */
struct lb_geneve {
	__u8 options;
	__u8 flags;
	__be16 protocol;
	__be32 vni;
	__be16 class;
	__u8 type;
	__u8 length;
	struct lb_addr pod;
	__be16 port;
	__be16 answer;
	__u32 key[2];
};

/* Room for an IP header of either family, which ends where the next header begins: lb_ip_start(). */
struct lb_ip_room {
	__be32 words[sizeof(struct ipv6hdr) / sizeof(__be32)];
};

enum lb_tunnel_state {
	LB_TUNNEL_ARRIVED = 1,  /* for a pod of this node */
	LB_TUNNEL_RETURNED = 2, /* the pod's node has sent it back */
};

/*
 * The headers in front of a tunneled packet. is_open: enum lb_tunnel_state; not 0 if the current packet
 * came from a tunnel, and they were removed.
 */
struct lb_tunnel {
	struct lb_ip_room ip;
	struct udphdr udp;
	struct lb_geneve geneve;
	__u32 is_open;
};

/*
 * What does not fit on the stack, or what the verifier must not know too much about; and what one step
 * leaves for a later one (ending, tunnel, sctp).
 */
struct lb_scratch {
	__u64 flow_rate; /* see rate_limit.h */
	__u64 rejects;
	__u64 echoes;
	struct lb_flow flow;               /* a new one */
	struct lb_conntrack entry;         /* of it */
	struct lb_known_flow known;        /* what the current packet becomes */
	struct lb_ended_flow ending;       /* the flow that the current packet ends */
	struct lb_retry retry;             /* of the flow that it opens again */
	struct lb_tunnel tunnel;           /* that the current packet came from or goes to */
	struct lb_quote quote;             /* of an ICMP error */
	struct lb_sctp_change sctp;        /* of a checksum, pending */
	struct lb_packet pkt;              /* a copy for lb_verifier_merge_states() */
	struct lb_silent_port silent_port; /* that a new UDP flow may take */
	struct lb_client_key client;       /* that connects */
	struct bpf_sock_tuple sock_tuple;  /* of a socket to look for */
	struct lb_stack_scratch stack;     /* a packet that the stack will route */
};

/* Of an IP header without options or extension headers. */
static __always_inline int lb_ip_len(int is_ipv4)
{
	return is_ipv4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
}

/* is_ipv4: a constant. */
static __always_inline void *lb_ip_start(struct lb_ip_room *room, int is_ipv4)
{
	return (void *)(room + 1) - lb_ip_len(is_ipv4);
}

/* Without IP options or extension headers. */
static __always_inline int lb_is_plain(const struct lb_packet *pkt)
{
	return pkt->l4 - pkt->l3 == lb_ip_len(pkt->is_ipv4);
}

/* Bytes after the transport header; for SCTP, after the header of the first chunk. */
static __always_inline __u32 lb_payload(const struct lb_packet *pkt)
{
	__s32 len = pkt->len - (pkt->l4 - pkt->l3) - pkt->header_len;

	return len > 0 ? len : 0;
}

/* The sequence number after a packet of TCP. */
static __always_inline __u32 lb_tcp_end(const struct lb_packet *pkt)
{
	return pkt->seq + lb_payload(pkt) + !!(pkt->tcp_flags & (LB_TCP_SYN | LB_TCP_FIN));
}

static __always_inline int lb_has_transport(const struct lb_packet *pkt)
{
	return pkt->fragment != LB_FRAGMENT_LATER;
}

#endif
