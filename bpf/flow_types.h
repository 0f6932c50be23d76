/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The structs and enums of flows, sockets and session affinity. */
#ifndef LB_FLOW_TYPES_H
#define LB_FLOW_TYPES_H

#include "observe_types.h"
#include "service_types.h"

/* The addresses and ports that a packet has on the wire at the hook that looks it up. */
struct lb_tuple {
	struct lb_addr saddr;
	struct lb_addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 pad[3];
};

enum lb_direction {
	LB_DIR_NONE = 0,
	LB_DIR_ORIGINAL = 1,
	LB_DIR_REPLY = 2,
};

/* LB_HOOK_RESERVED: used by another NAT or a process (own_udp.h); its packets pass. */
enum lb_hook {
	LB_HOOK_RESERVED = 0,
	LB_HOOK_HOST_INGRESS = 1,
	LB_HOOK_HOST_EGRESS = 2,
	LB_HOOK_POD_INGRESS = 3,
	LB_HOOK_POD_EGRESS = 4,
};

/*
 * What this direction has seen; UDP only uses ACK, for a reply. OTHER_FIN: a FIN in the other
 * direction; CLOSED: FINs in both, or a reset. ACK of an established flow that was reset: seen
 * since the reset.
 */
enum lb_ct_state {
	LB_CT_SYN = 1 << 0,
	LB_CT_ACK = 1 << 1,
	LB_CT_OTHER_FIN = 1 << 2,
	LB_CT_CLOSED = 1 << 3,
	LB_CT_ESTABLISHED = 1 << 4,
	LB_CT_FIN_ACKED = 1 << 5,
	/*
	 * The client opened it again: see lb_conntrack_retry(). Of an established flow: its last packet
	 * was a SYN.
	 */
	LB_CT_RETRIED = 1 << 6,
	LB_CT_ENDED = 1 << 7, /* and recorded */
};

enum lb_ct_flag {
	LB_CT_SNAT = 1 << 0,
	LB_CT_HAIRPIN = 1 << 1,
	/* A reply that goes up the stack of this node, to a process of the host. */
	LB_CT_TO_HOST = 1 << 2,
	/* Has START and END records. */
	LB_CT_SAMPLED = 1 << 3,
	/* Requests are routed to a pod of this node, through a device that is not a host device. */
	LB_CT_TO_POD = 1 << 4,
	/* Counted as failed, because the client had to repeat its SYN (ejection.h). */
	LB_CT_UNANSWERED = 1 << 5,
	/* Tunneled to the pod's node; to is a struct lb_tunneled, and there is no reply entry. */
	LB_CT_DSR = 1 << 6,
	/* Came from another node in a tunnel. */
	LB_CT_TUNNELED = 1 << 7,
};

/*
 * One direction of a flow: what its packets become, and at which hook. Times: CLOCK_MONOTONIC, ns.
 * ifindex: for a reply, the device on which the request arrived, 0 if it does not matter. sent_end:
 * the sequence number after the last byte sent in this direction (TCP, host byte order), 0 if
 * unknown. frontend: its index; desc_flags: the flags of its descriptor when the flow started.
 * bytes: payload. Two CPUs may update an entry, and OR is not atomic: only packets of this
 * direction write state, and only those of the other direction write other_state; a flag holds if it
 * is set in either. tried: 0, or which backends the connection has tried before (retry.h).
 */
struct lb_conntrack {
	struct lb_tuple to;
	__u64 created;
	__u64 last_seen;
	__u64 packets;
	__u64 bytes;
	__u32 service;
	__u32 backend;
	__u32 serial;
	__u32 ifindex;
	__u8 direction;
	__u8 hook;
	__u8 state;
	__u8 flags;
	__u32 sent_end;
	__u32 frontend;
	__u16 desc_flags;
	__u8 other_state;
	__u8 tried;
};

/* An extra index into struct lb_reply_ends, after those of enum lb_hook: see there. */
#define LB_FILTER_REQUEST 7

/*
 * For each enum lb_hook: whether replies from this address and port may be reversed there.
 * LB_FILTER_REQUEST: whether the stack routes masqueraded packets to this address and port. Bytes
 * rather than bits, because two CPUs may write at the same time.
 */
struct lb_reply_ends {
	__u8 hooks[8];
};

/*
 * The ports of a datagram's first fragment, and whether the stack routes it. created:
 * CLOCK_MONOTONIC, ns.
 */
struct lb_fragment {
	__u64 created;
	__be16 sport;
	__be16 dport;
	__u32 via_stack;
};

/* What a packet that the stack routes becomes when it leaves. last_seen: CLOCK_MONOTONIC, ns. */
struct lb_stack_nat {
	struct lb_tuple to;
	__u64 last_seen;
};

/*
 * peer: the frontend in direction original (sendmsg), the backend in direction reply, zero without a
 * direction.
 */
struct lb_socket_key {
	__u64 cookie;
	struct lb_addr peer;
	__be16 port;
	__u8 proto;
	__u8 direction;
	__u32 pad;
};

/*
 * The other peer: the backend, or the frontend; in direction reply the peer itself, if the socket sent
 * to it directly. flow_flags: LB_CT_SAMPLED (UDP).
 */
struct lb_socket {
	struct lb_addr peer;
	__be16 port;
	__u16 flow_flags;
	__u32 backend;
	__u32 serial;
	__u32 service;
	__u32 frontend;
	__u32 desc_flags;
};

/* SAMPLED: has START and END records. FIN_ACKED: the backend acknowledged our FIN. */
enum lb_connection_state {
	LB_CONN_SAMPLED = 1 << 0,
	LB_CONN_ESTABLISHED = 1 << 1,
	LB_CONN_FIN_ACKED = 1 << 2,
	LB_CONN_PEER_FIN = 1 << 3,
	LB_CONN_TIMED_OUT = 1 << 4,
	LB_CONN_UNANSWERED = 1 << 5, /* counted as failed, because the SYN had to be repeated */
};

/*
 * A TCP connection translated at the socket, keyed by the socket's cookie. Times: CLOCK_MONOTONIC,
 * ns. started: when its SYN was sent, 0 before. original, reply, retransmits: what the counters
 * already include, as of flushed. addr and port: the frontend; backend: its index.
 * state: enum lb_connection_state.
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
	__u32 serial;
	__u32 desc_flags;
	__u32 retransmits;
	struct lb_addr backend_addr;
	__be16 backend_port;
	__u8 pad2[2];
};

/* All zero while it is free. claims: how many programs are about to take it. */
struct lb_conn_place {
	__u64 cookie;
	__u64 claims;
	struct lb_connection connection;
};

/* A client of a Service port; its address before SNAT. */
struct lb_client_key {
	__u32 service;
	struct lb_addr client;
};

/* Its last connection with a watched backend. */
struct lb_client {
	__u64 established; /* CLOCK_MONOTONIC in ns */
	__u32 backend;
	__u32 serial;
};

/*
 * What a client uses of its limits (limits.h). open: its connections. due: CLOCK_MONOTONIC, ns; when it
 * may open as many at once as an idle client.
 */
struct lb_client_use {
	__s64 open;
	__u64 due;
};

/* The backend of the client's last new flow, and the time. The first two are stored as one word. */
struct lb_affinity {
	__u32 backend;
	__u32 serial;
	__u64 last_used;
};

#endif
