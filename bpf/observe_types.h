/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The structs and enums of counters, flow records and histograms. */
#ifndef LB_OBSERVE_TYPES_H
#define LB_OBSERVE_TYPES_H

#include "service_types.h"

/* One direction. bytes: payload of TCP, UDP or SCTP, so that all paths count the same. */
struct lb_traffic {
	__u64 packets;
	__u64 bytes;
};

/*
 * connections: new connections and flows, each that is retried once more. failed: the backend refused,
 * or did not answer; of a frontend, not if the connection was retried. retransmits: only for connections
 * translated at the socket. retried: of a frontend.
 */
struct lb_counts {
	__u64 connections;
	__u64 refused;
	__u64 dropped;
	__u64 failed;
	__u64 retransmits;
	struct lb_traffic original;
	struct lb_traffic reply;
	__u64 retried;
};

/* Places of drops that do not belong to a host device. */
enum lb_drop_place {
	LB_DROP_AT_SOCKET = 0,
	LB_DROP_AT_POD = 0x7fffffff,
};

/* ifindex: a host device, or enum lb_drop_place. */
struct lb_drop_key {
	__u32 reason;
	__u32 ifindex;
};

enum lb_path {
	LB_PATH_SOCKET = 1,
	LB_PATH_TC = 2,
};

enum lb_flow_event {
	LB_FLOW_START = 1,
	LB_FLOW_END = 2,
	LB_FLOW_REFUSED = 3,
	LB_FLOW_DROPPED = 4,
};

/*
 * How a flow ended. NO_ANSWER, BACKEND_REFUSED: it was never established. REPLACED: its client
 * opened another from the same port before it ended or timed out. RETRIED: its backend did not answer
 * or refused, and the client's next SYN goes to another one (retry.h).
 */
enum lb_flow_end {
	LB_END_CLOSED = 1,
	LB_END_RESET = 2,
	LB_END_TIMED_OUT = 3,
	LB_END_NO_ANSWER = 4,
	LB_END_BACKEND_REFUSED = 5,
	LB_END_REPLACED = 6,
	LB_END_RETRIED = 7,
};

enum lb_flow_source {
	LB_FROM_THIS_NODE = 1,
	LB_FROM_ELSEWHERE = 2,
};

#define LB_FLOW_RECORD_VERSION 1

/*
 * A record in lb_flows. Times: CLOCK_MONOTONIC, ns. end: for END; reason, an enum lb_drop_reason:
 * for REFUSED and DROPPED. hook: enum lb_hook, 0 at the socket. service, backend, serial: 0 if
 * none was chosen. rtt: smoothed, microseconds, 0 if unknown.
 */
struct lb_flow_record {
	__u8 version;
	__u8 event;
	__u8 path;
	__u8 end;
	__u8 reason;
	__u8 proto;
	__u8 hook;
	__u8 source;
	__u64 time;
	__u64 started;
	struct lb_addr client;
	struct lb_addr frontend;
	struct lb_addr backend_addr;
	__be16 client_port;
	__be16 frontend_port;
	__be16 backend_port;
	__u16 flow_flags;
	__u32 service;
	__u32 backend;
	__u32 serial;
	__u32 desc_flags;
	struct lb_traffic original;
	struct lb_traffic reply;
	__u32 rtt;
	__u32 retransmits;
};

/* Why a record was lost; the index of lb_flow_lost. */
enum lb_flow_lost {
	LB_LOST_FULL = 0,
	LB_LOST_RATE = 1,
	LB_LOST_REASONS = 2,
};

/* buckets[n] counts values with n significant bits; the last bucket also counts all larger ones. */
#define LB_BUCKETS 40

struct lb_histogram {
	__u64 buckets[LB_BUCKETS];
	__u64 sum;
};

/* For ended flows. The index of lb_histograms is LB_HISTOGRAM_KINDS * (path - 1) + kind. */
enum lb_histogram_kind {
	LB_HISTOGRAM_DURATION = 0, /* microseconds */
	LB_HISTOGRAM_RTT = 1,      /* microseconds */
	LB_HISTOGRAM_BYTES = 2,    /* both directions */
	LB_HISTOGRAM_KINDS = 3,
};

#endif
