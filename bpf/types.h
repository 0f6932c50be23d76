/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Every struct and enum shared with Python but enum lb_scheduler; it mirrors them (structs.py,
 * enums.py), and each compile asserts that both agree. No code. Field types carry the byte order;
 * padding is named pad and is zero.
 */
#ifndef LB_TYPES_H
#define LB_TYPES_H

#include "flow_types.h"
#include "observe_types.h"
#include "service_types.h"

enum lb_device_kind {
	LB_DEVICE_HOST = 1,
	LB_DEVICE_WORKLOAD = 2,
};

enum lb_device_flag {
	LB_DEVICE_ETHERNET = 1 << 0,
	LB_DEVICE_SUBNETS = 1 << 1,    /* it has several, which are in lb_subnets */
	LB_DEVICE_XDP = 1 << 2,        /* it has lb_xdp */
	LB_DEVICE_XDP_SENDS = 1 << 3,  /* it sends what lb_xdp of other devices redirects */
	LB_DEVICE_XDP_STALLS = 1 << 4, /* XDP_TX there may wait for the next packet */
};

/*
 * snat4 and snat6: the source address of packets masqueraded out of this device, or zero. mtu: in
 * bytes, 0 if unknown. mac: zero without Ethernet.
 */
struct lb_device {
	__u32 kind;
	__u32 flags;
	__u32 mtu;
	struct lb_addr snat4;
	struct lb_addr snat6;
	__u8 mac[6];
	__u8 pad[2];
};

/* A host device at an index computed from the ifindex. ifindex: 0 while it is written. */
struct lb_uplink {
	__u32 ifindex;
	__u32 flags;
	struct lb_addr snat4;
	struct lb_addr snat6;
	__u8 mac[6];
	__u8 pad[2];
};

/* A key of lb_subnets: a prefix of the next hop's address. length: in bits, with the ifindex. */
struct lb_subnet {
	__u32 length;
	__u32 ifindex;
	struct lb_addr addr;
};

enum lb_netns_flag {
	LB_NETNS_HOST = 1 << 0,
	LB_NETNS_COVERED = 1 << 1, /* its device has the tc programs */
	LB_NETNS_TC_ONLY = 1 << 2, /* and its sockets are left alone */
};

struct lb_netns {
	__u32 flags;
	__u32 ifindex;
};

enum lb_setting_flag {
	/* Pods under tc cover are translated at tc only. */
	LB_SETTING_SOCKET_HOST = 1 << 0,
	/* 127.0.0.0/8 accepts NodePorts, for processes of the host. */
	LB_SETTING_LOCALHOST = 1 << 1,
	/* Some pod is LB_NETNS_TC_ONLY. */
	LB_SETTING_TC_ONLY_PODS = 1 << 2,
	/* Flows stay in lb_ct_short, because lb_conntrack is being replaced by a larger one. */
	LB_SETTING_HOLD = 1 << 3,
	/* The stack routes all masqueraded packets (stack_route.h). */
	LB_SETTING_VIA_STACK = 1 << 4,
	/* Another proxy runs here for good, and would masquerade what has kube-proxy's mark. */
	LB_SETTING_BESIDE = 1 << 5,
	/*
	 * New flows go to lb_conntrack and lb_ct_stream, and none to lb_ct_dsr, because a table that
	 * evicts is being replaced by a larger one.
	 */
	LB_SETTING_DIVERT = 1 << 6,
	/* Sockets of this node use the ports of masqueraded flows, too. */
	LB_SETTING_SHARED_PORTS = 1 << 7,
	/* Like LB_SETTING_LOCALHOST, for ::1. */
	LB_SETTING_LOCALHOST6 = 1 << 8,
	/* Unknown connections to Services are reset: netfilter translates none. */
	LB_SETTING_RESETS = 1 << 9,
};

/* Host byte order, both ends included. */
struct lb_port_range {
	__u16 first;
	__u16 last;
};

/*
 * Timeouts in seconds. tcp_close_wait: one side has closed; udp: without an answer yet; udp_stream:
 * with answers. flow_events: 1 << enum lb_flow_event, for each kind written to lb_flows.
 * flow_sample: one in this many flows has START and END records, 0 for none. flow_rate: records per
 * second and CPU, 0 for no limit. node4 and node6: the node's primary addresses, the source of
 * hairpins and of tunnels to other nodes. dsr_port: the UDP port of nodes that take part in DSR, 0
 * without. filter_floor: no flow needs a smaller mark in lb_flow_filter.
 */
struct lb_settings {
	__u32 flags;
	struct lb_port_range snat_ports[2];
	__u32 tcp_opening_timeout;
	__u32 tcp_established_timeout;
	__u32 tcp_closed_timeout;
	__u32 tcp_close_wait_timeout;
	__u32 udp_timeout;
	__u32 udp_stream_timeout;
	__u32 flow_events;
	__u32 flow_sample;
	__u32 flow_rate;
	struct lb_addr node4;
	struct lb_addr node6;
	__be16 dsr_port;
	__u8 pad[2];
	__u32 filter_floor;
};

/* With which tunnels are sent, and with which they are accepted, too. All zero: there is no key. */
struct lb_tunnel_keys {
	__u64 sent;
	__u64 other;
};

/* told: CLOCK_MONOTONIC, ns. */
struct lb_path_mtu {
	__u64 told;
	__u32 mtu;
	__u32 pad;
};

#define LB_SERVICE_NETS 8

struct lb_net4 {
	__be32 net;
	__be32 mask;
};

struct lb_net6 {
	struct lb_addr net;
	struct lb_addr mask;
};

/* The ServiceCIDRs; the first one without a mask ends the list. */
struct lb_service_nets {
	struct lb_net4 ipv4[LB_SERVICE_NETS];
	struct lb_net6 ipv6[LB_SERVICE_NETS];
};

/* Why a packet or a connection was dropped. */
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
	LB_DROP_SOURCE_RANGE = 11,
	LB_DROP_UNUSED_ADDRESS = 12,
	LB_DROP_LOOP = 13,
	LB_DROP_TUNNEL = 14,     /* to the DSR port: not from a node, or of no flow here */
	LB_DROP_TUNNEL_KEY = 15, /* from a node, without a key of the cluster */
	LB_DROP_UNKNOWN_CONNECTION = 16,
	LB_DROP_UNSERVED_PORT = 17,
	LB_DROP_ECHO = 18,
	LB_DROP_BACKENDS_FULL = 19,
	LB_DROP_CLIENT_OPEN = 20,
	LB_DROP_CLIENT_NEW = 21,
};

/*
 * What became of a packet at XDP that the early filter took for one of a Service: it was sent, or
 * passed to tc for this reason. CHECKSUM: left to a device. LOCAL: for this node or one of its
 * pods. ROUTE: none, or the packet is too big or its TTL has expired. NEIGHBOUR: unknown, or due
 * for a probe. DEVICE: it leaves through one without XDP. REFUSED: tc answers or drops it. STACK:
 * the stack routes it, or tc has to ask for sockets with its port.
 */
enum lb_xdp_result {
	LB_XDP_SENT = 0,
	LB_XDP_FRAGMENT = 1,
	LB_XDP_HEADER = 2,
	LB_XDP_PROTOCOL = 3,
	LB_XDP_CHECKSUM = 4,
	LB_XDP_LOCAL = 5,
	LB_XDP_ROUTE = 6,
	LB_XDP_NEIGHBOUR = 7,
	LB_XDP_DEVICE = 8,
	LB_XDP_REFUSED = 9,
	LB_XDP_STACK = 10,
	LB_XDP_RESULTS = 11,
};

/* What the pins were made from. This layout never changes. */
struct lb_meta {
	__u32 magic;
	__u32 layout;
	__u32 flows;
	__u8 source[32];
};

#endif
