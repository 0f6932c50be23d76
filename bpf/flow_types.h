/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What connections and flows are in the maps. */
#ifndef LB_FLOW_TYPES_H
#define LB_FLOW_TYPES_H

#include "observe_types.h"
#include "service_types.h"

/* A packet's addresses as they stand on the wire at the hook that looks it up. */
struct lb_tuple {
	struct lb_addr saddr;
	struct lb_addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 pad[3];
};

enum lb_direction {
	LB_DIR_ORIGINAL = 1,
	LB_DIR_REPLY = 2,
};

/* RESERVED: no flow of ours; another NAT of this node has the tuple, whose packets pass. */
enum lb_hook {
	LB_HOOK_RESERVED = 0,
	LB_HOOK_HOST_INGRESS = 1,
	LB_HOOK_HOST_EGRESS = 2,
	LB_HOOK_POD_INGRESS = 3,
	LB_HOOK_POD_EGRESS = 4,
};

/* Seen in this direction; of UDP, ACK alone: a reply. PEER_FIN: in the other one; CLOSED: by both sides, or reset. */
enum lb_ct_state {
	LB_CT_SYN = 1 << 0,
	LB_CT_ACK = 1 << 1,
	LB_CT_PEER_FIN = 1 << 2,
	LB_CT_CLOSED = 1 << 3,
	LB_CT_ESTABLISHED = 1 << 4,
	LB_CT_FIN_ACKED = 1 << 5,
	/* The client has opened it once more: see lb_conntrack_retry(). */
	LB_CT_RETRIED = 1 << 6,
	LB_CT_ENDED = 1 << 7, /* and was told of */
};

enum lb_ct_flag {
	LB_CT_SNAT = 1 << 0,
	LB_CT_HAIRPIN = 1 << 1,
	/* A reply that goes up the stack of this node, to a process of the host. */
	LB_CT_TO_HOST = 1 << 2,
	/* Its beginning and its end are told of. */
	LB_CT_SAMPLED = 1 << 3,
};

/*
 * One direction of a flow: what its packets become, and at which hook. Times: CLOCK_MONOTONIC, ns.
 * ifindex: where they must leave, 0 when the stack routes them. fin_end: what acknowledges the
 * other side's FIN, host byte order. frontend: its index, and desc_flags what it was like, when the
 * flow began. bytes: payload. Two CPUs may be at it, and OR is not atomic: packets of this direction
 * alone write state, those of the other one peer_state; what is in either holds.
 */
struct lb_conntrack {
	struct lb_tuple to;
	__u64 created;
	__u64 last_seen;
	__u64 packets;
	__u64 bytes;
	__u32 service;
	__u32 backend;
	__u32 generation;
	__u32 ifindex;
	__u8 direction;
	__u8 hook;
	__u8 state;
	__u8 flags;
	__u32 fin_end;
	__u32 frontend;
	__u16 desc_flags;
	__u8 peer_state;
	__u8 pad;
};

/*
 * Whether replies of flows may come from these ends, by the enum lb_hook where they are reversed;
 * RESERVED: at any of them, of flows from before they were told apart. Not bits: two CPUs may write.
 */
struct lb_reply_ends {
	__u8 hooks[8];
};

/* What the first fragment of a datagram had. created: CLOCK_MONOTONIC, ns. */
struct lb_fragment {
	__u64 created;
	__be16 sport;
	__be16 dport;
	__u32 pad;
};

/* peer is the frontend in direction original (sendmsg) and the backend in direction reply. */
struct lb_socket_key {
	__u64 cookie;
	struct lb_addr peer;
	__be16 port;
	__u8 proto;
	__u8 direction;
	__u32 pad;
};

/* The other one: the backend's address, or the frontend's. flow_flags: LB_CT_SAMPLED, of UDP. */
struct lb_socket {
	struct lb_addr peer;
	__be16 port;
	__u16 flow_flags;
	__u32 backend;
	__u32 generation;
	__u32 service;
	__u32 frontend;
	__u32 desc_flags;
};

/* SAMPLED: its beginning and its end are told of. FIN_ACKED: our FIN, by the backend. */
enum lb_connection_state {
	LB_CONN_SAMPLED = 1 << 0,
	LB_CONN_ESTABLISHED = 1 << 1,
	LB_CONN_FIN_ACKED = 1 << 2,
	LB_CONN_PEER_FIN = 1 << 3,
	LB_CONN_TIMED_OUT = 1 << 4,
};

/*
 * A TCP connection that was translated at the socket, by its cookie. Times: CLOCK_MONOTONIC, ns;
 * started: its SYN, 0 before. original, reply, retransmits: what of it is in the counters already,
 * at flushed. addr and port: the frontend; peer and peer_port: the backend. state: enum
 * lb_connection_state.
 */
struct lb_connection {
	__u64 started;
	__u64 flushed;
	struct lb_traffic original;
	struct lb_traffic reply;
	struct lb_addr addr;
	__be16 port;
	__u8 state;
	__u8 pad;
	__u32 frontend;
	__u32 service;
	__u32 backend;
	__u32 generation;
	__u32 desc_flags;
	__u32 retransmits;
	struct lb_addr peer;
	__be16 peer_port;
	__u8 pad2[2];
};

/* A client of a Service port, as it was before SNAT. */
struct lb_affinity_key {
	__u32 service;
	struct lb_addr client;
};

/* Where its last new flow went, and when. The first two are stored as one word. */
struct lb_affinity {
	__u32 backend;
	__u32 generation;
	__u64 last_used;
};

#endif
