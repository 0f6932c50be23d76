/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Every struct and enum shared with Python: dataplane/structs.py mirrors them, each compile asserts
 * that both agree. No code. Field types carry the byte order; padding is named pad and is zero.
 */
#ifndef LB_TYPES_H
#define LB_TYPES_H

/* Both families: IPv4 as ::ffff:a.b.c.d. */
struct lb_addr {
	__be32 word[4];
};

/* What accepts traffic. The wildcard address of a family stands for any node address (NodePort). */
struct lb_frontend_key {
	struct lb_addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
};

enum lb_frontend_type {
	LB_CLUSTER_IP = 1,
	LB_NODE_PORT = 2,
	LB_EXTERNAL_IP = 3,
	LB_LOAD_BALANCER = 4,
};

/* What a range without backends means for a new connection. */
enum lb_if_empty {
	LB_EMPTY_REFUSE = 1,
	LB_EMPTY_DROP = 2,
};

/* lb_slots[base] to lb_slots[base + count - 1] name the backends. */
struct lb_range {
	__u32 base;
	__u32 count;
	__u32 if_empty;
};

enum lb_desc_flag {
	LB_DESC_INTERNAL_LOCAL = 1 << 0,
	LB_DESC_EXTERNAL_LOCAL = 1 << 1,
};
/* What a frontend does. Immutable while lb_current names it. */
struct lb_desc {
	struct lb_frontend_key frontend;
	__u32 service;
	struct lb_range local;
	struct lb_range others;
	__u32 type;
	__u32 flags;
	__u32 affinity_timeout;
	__u32 pad;
};

enum lb_backend_flag {
	LB_BACKEND_LOCAL = 1 << 0,
	LB_BACKEND_TERMINATING = 1 << 1,
	LB_BACKEND_USABLE = 1 << 2, /* some range of its Service port names it */
};

/* One endpoint of one Service port. generation changes when the index is given to another one. */
struct lb_backend {
	struct lb_addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
	__u32 flags;
	__u32 generation;
	__u32 service;
};

/* Zero-terminated; for tools that have only the pins. */
struct lb_name {
	char ns[64];
	char service[64];
	char port[64];
};

/* Flags behind lb_addrs. An address without flags is known only for the flows it still has. */
enum lb_addr_flag {
	LB_ADDR_CLUSTER_IP = 1 << 0,
	LB_ADDR_EXTERNAL = 1 << 1,
	LB_ADDR_NODE = 1 << 2,
	LB_ADDR_NODE_PORT = 1 << 3,
};

enum lb_device_kind {
	LB_DEVICE_HOST = 1,
	LB_DEVICE_WORKLOAD = 2,
};

enum lb_device_flag {
	LB_DEVICE_ETHERNET = 1 << 0,
};

/* snat4 and snat6: the source address of what is masqueraded out of this device, or zero. */
struct lb_device {
	__u32 kind;
	__u32 flags;
	struct lb_addr snat4;
	struct lb_addr snat6;
};

enum lb_netns_flag {
	LB_NETNS_HOST = 1 << 0,
	LB_NETNS_COVERED = 1 << 1, /* its device carries our tc programs */
};

struct lb_netns {
	__u32 flags;
	__u32 ifindex;
};

enum lb_setting_flag {
	/* Pods under tc cover are translated at tc only. */
	LB_SETTING_SOCKET_HOST = 1 << 0,
};

/* Host byte order, both ends included. */
struct lb_port_range {
	__u16 first;
	__u16 last;
};

/* Timeouts in seconds. node4 and node6: source of a hairpin, the node's primary addresses. */
struct lb_settings {
	__u32 flags;
	struct lb_port_range snat_ports[2];
	__u32 tcp_opening_timeout;
	__u32 tcp_established_timeout;
	__u32 tcp_closed_timeout;
	__u32 udp_timeout;
	struct lb_addr node4;
	struct lb_addr node6;
};

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

enum lb_hook {
	LB_HOOK_HOST_INGRESS = 1,
	LB_HOOK_HOST_EGRESS = 2,
	LB_HOOK_POD_INGRESS = 3,
	LB_HOOK_POD_EGRESS = 4,
};

/* Seen in this direction. PEER_FIN: in the other one; CLOSED: by both sides, or reset. */
enum lb_ct_state {
	LB_CT_SYN = 1 << 0,
	LB_CT_ACK = 1 << 1,
	LB_CT_PEER_FIN = 1 << 2,
	LB_CT_CLOSED = 1 << 3,
	LB_CT_ESTABLISHED = 1 << 4,
	LB_CT_FIN_ACKED = 1 << 5,
};

enum lb_ct_flag {
	LB_CT_SNAT = 1 << 0,
	LB_CT_HAIRPIN = 1 << 1,
	/* A reply that goes up the stack of this node, to a process of the host. */
	LB_CT_TO_HOST = 1 << 2,
};

/*
 * One direction of a flow: what its packets become, and at which hook. Times: CLOCK_MONOTONIC, ns.
 * ifindex: where they must leave, 0 when the stack routes them. fin_end: what acknowledges the
 * other side's FIN, host byte order.
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

/* The other one: the backend's address, or the frontend's. */
struct lb_socket {
	struct lb_addr peer;
	__be16 port;
	__u16 pad;
	__u32 backend;
	__u32 generation;
	__u32 service;
};

struct lb_counts {
	__u64 connections;
	__u64 refused;
	__u64 dropped;
};

/* Why something was not let through; the index of lb_count_drop. */
enum lb_drop_reason {
	LB_DROP_NO_ENDPOINT = 1,
	LB_DROP_NO_LOCAL_ENDPOINT = 2,
	LB_DROP_UNKNOWN_PORT = 3,
	LB_DROP_SNAT_PORTS = 4,
	LB_DROP_CONNTRACK_FULL = 5,
	LB_DROP_TTL_EXCEEDED = 6,
	LB_DROP_TOO_BIG = 7,
	LB_DROP_NO_ROUTE = 8,
	LB_DROP_NO_SNAT_ADDRESS = 9,
	LB_DROP_REWRITE = 10,
	LB_DROP_REASONS = 11,
};

/* What the pins were made from; this layout never changes. */
struct lb_meta {
	__u32 magic;
	__u32 layout;
	__u32 flows;
	__u8 source[32];
};

#endif
