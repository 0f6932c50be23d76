/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The structs and enums of Services: frontends, descriptors, backends, addresses, names. */
#ifndef LB_SERVICE_TYPES_H
#define LB_SERVICE_TYPES_H

/* One type for both families: IPv4 is ::ffff:a.b.c.d. */
struct lb_addr {
	__be32 word[4];
};

/* A frontend. The wildcard address of a family stands for any node address (NodePort). */
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

/* What happens to a new connection if the range has no backends. */
enum lb_if_empty {
	LB_EMPTY_REFUSE = 1,
	LB_EMPTY_DROP = 2,
	/* Another node may have some. Also in ranges with backends: unknown connections pass, too. */
	LB_EMPTY_PASS = 3,
};

/*
 * The backends are lb_slots[base] to lb_slots[base + count - 1]. They are followed by `table`
 * slots, 0 for none, with the same backends: the table in which schedulers look up a hash, or, if
 * the backends have different weights, in which each has as many slots as its weight.
 */
struct lb_range {
	__u32 base;
	__u32 count;
	__u16 if_empty;
	__u16 table;
};

enum lb_desc_flag {
	LB_DESC_INTERNAL_LOCAL = 1 << 0,
	LB_DESC_EXTERNAL_LOCAL = 1 << 1,
	LB_DESC_SOURCE_RANGES = 1 << 2, /* clients must be in lb_src_ranges */
	LB_DESC_MASQUERADE = 1 << 3,    /* the backend sees an address of this node */
	LB_DESC_COUNTS_OPEN = 1 << 4,   /* its connections are counted in lb_open */
	LB_DESC_DSR = 1 << 5,           /* pods elsewhere see the client and answer it directly */
	LB_DESC_TIMED = 1 << 11,        /* its backends' answers are timed in lb_latencies */
	/* For the agent and its commands: it also, or only, has endpoints of its backup. */
	LB_DESC_SPILLS = 1 << 9,
	LB_DESC_ON_BACKUP = 1 << 10,
	/* Flags that its address gets: enum lb_addr_flag. */
	LB_DESC_UNSERVED_REJECT = 1 << 8,
	LB_DESC_UNSERVED_DROP = 1 << 12,
	LB_DESC_UNSERVED_PASS = 1 << 13,
	LB_DESC_ECHO = 1 << 14,
	LB_DESC_RETRY = 1 << 6,  /* connections that fail go to another backend (retry.h) */
	LB_DESC_LIMITS = 1 << 7, /* its Service port is in lb_limits */
};

/* A descriptor: what a frontend does. Immutable while lb_current refers to it. */
struct lb_desc {
	struct lb_frontend_key frontend;
	__u32 service;
	struct lb_range local;
	struct lb_range others;
	__u32 type;
	__u16 flags;
	__u8 scheduler; /* enum lb_scheduler, in scheduler.h */
	__u8 pad;
	__u32 affinity_timeout;
	__u32 source_ranges;
};

/* A key of lb_src_ranges: a descriptor's source_ranges and a prefix. length: in bits. */
struct lb_source_range {
	__u32 length;
	__u32 source_ranges;
	struct lb_addr addr;
};

enum lb_backend_flag {
	LB_BACKEND_LOCAL = 1 << 0,
	LB_BACKEND_TERMINATING = 1 << 1,
	LB_BACKEND_USABLE = 1 << 2, /* some range of its Service port names it */
	/* No range names it, but its endpoint serves: its UDP flows stay, or it is ejected. */
	LB_BACKEND_SERVING = 1 << 3,
	/* Failed connections to it are counted (ejection.h). */
	LB_BACKEND_WATCHED = 1 << 4,
	/* No range names it because of these failures; its open connections continue. */
	LB_BACKEND_EJECTED = 1 << 5,
	/* It gets a single new connection, which decides whether it returns. */
	LB_BACKEND_TRIAL = 1 << 6,
};

/*
 * One endpoint of one Service port. serial changes when the index is reused for another one. weight:
 * where connections are compared and weights differ, otherwise 0.
 */
struct lb_backend {
	struct lb_addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
	__u16 flags;
	__u16 weight;
	__u32 serial;
	__u32 service;
};

/* An endpoint of a Service port, on this node. */
struct lb_pod_key {
	struct lb_addr addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
	__u32 service;
};

/*
 * For a watched backend. in_a_row: failed connections since the last successful one. failed: whose
 * they were, a bit for each client, by a hash. On trial: tried, who has got a connection, and
 * busy_until, while the last one may still have a result.
 */
struct lb_failures {
	__u32 in_a_row;
	__u32 pad;
	__u64 failed;
	__u64 tried;
	__u64 busy_until; /* CLOCK_MONOTONIC in ns */
};

/* Of a limit: who is over it is dropped, where clients otherwise are refused. */
enum lb_limit_flag {
	LB_LIMIT_OPEN_DROPS = 1 << 0,
	LB_LIMIT_CLIENT_OPEN_DROPS = 1 << 1,
	LB_LIMIT_CLIENT_NEW_DROPS = 1 << 2,
};

/*
 * Limits of a Service port; 0 for none. interval: ns between the new connections of a client. burst: ns
 * by which lb_client_use.due may be ahead of the time when one is opened: interval, times one less than
 * the number that an idle client may open at once. open: connections of a backend. client_open:
 * connections of a client. flags: enum lb_limit_flag.
 */
struct lb_limit {
	__u64 interval;
	__u64 burst;
	__u32 open;
	__u32 client_open;
	__u32 flags;
	__u32 pad;
};

/* How long a backend takes to answer: us, 0 if unknown. measured: see latency.h. */
struct lb_latency {
	__u32 average;
	__u32 measured;
};

/* Zero-terminated; for tools that only have the pins. */
struct lb_name {
	char ns[64];
	char service[64];
	char port[64];
};

/*
 * SO_PRIORITY of sockets that no Service may divert: see listener.h. Without CAP_NET_ADMIN or
 * CAP_NET_RAW nobody can set it. Its last bits are those of the default, by which queueing
 * disciplines choose a band.
 */
enum lb_socket_priority {
	LB_SOCKET_OF_AGENT = 0x65620000,
};

/* Flags of an address in lb_addrs. One without flags is kept only for its remaining flows. */
enum lb_addr_flag {
	LB_ADDR_CLUSTER_IP = 1 << 0,
	LB_ADDR_EXTERNAL = 1 << 1,
	LB_ADDR_NODE = 1 << 2,
	LB_ADDR_NODE_PORT = 1 << 3,
	LB_ADDR_EXTERNAL_PORT = 1 << 4, /* in lb_dest_filter only */
	/* What becomes of ports that no Service has there, if a Service asks for it; the first counts. */
	LB_ADDR_UNSERVED_DROP = 1 << 5,
	LB_ADDR_UNSERVED_REJECT = 1 << 6,
	LB_ADDR_UNSERVED_PASS = 1 << 7,
	LB_ADDR_ECHO = 1 << 8, /* some Service there has an endpoint for clients outside */
};

/* addr: fixed while lb_addrs or lb_dest_filter refer to the index. flags: enum lb_addr_flag. */
struct lb_addr_state {
	__u64 flags;
	struct lb_addr addr;
};

/*
 * One element serves two lookups. flags: enum lb_addr_flag of the addresses whose last 16 bits, and
 * of the NodePort or the UDP port of external IPs whose number, is the index. known: 1 + the index in lb_addr_flags of an address
 * whose lb_addr_fold() is the index, or 0; other addresses with this fold are in lb_addrs only.
 */
struct lb_dest {
	__u16 flags;
	__u8 pad[2];
	__u32 known;
};

#endif
