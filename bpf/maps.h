/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Every map. A hash element is written once and never changed; changing values are in arrays. */
#ifndef LB_MAPS_H
#define LB_MAPS_H

#include "config.h"
#include "packet.h"
#include "types.h"

#define LB_MAP(type, key, leaf, name, size) \
	BPF_TABLE_PINNED(type, key, leaf, name, size, LB_PIN_MAPS "/" #name)
/* Memory is allocated for each element when it is inserted. */
#define LB_MAP_BY_USE(type, key, leaf, name, size) \
	BPF_TABLE_PINNED(type, key, leaf, name, size, LB_PIN_MAPS "/" #name, BPF_F_NO_PREALLOC)
/* Programs only read it, as the verifier checks; the agent writes it. */
#define LB_MAP_READ(type, key, leaf, name, size) \
	BPF_TABLE_PINNED(type, key, leaf, name, size, LB_PIN_MAPS "/" #name, BPF_F_RDONLY_PROG)
#define LB_MAP_READ_BY_USE(type, key, leaf, name, size)                      \
	BPF_TABLE_PINNED(type, key, leaf, name, size, LB_PIN_MAPS "/" #name, \
			 BPF_F_NO_PREALLOC | BPF_F_RDONLY_PROG)
/* bcc has no macro for a pinned ring buffer. Its size is in bytes; it has no keys and values. */
#define LB_RING(name, size)                                \
	struct name##_table_t {                            \
		int key;                                   \
		__u32 leaf;                                \
		void *(*ringbuf_reserve)(__u64);           \
		void (*ringbuf_submit)(void *, __u64);     \
		__u32 max_entries;                         \
	};                                                 \
	__attribute__((section("maps/ringbuf:" LB_PIN_MAPS \
			       "/" #name))) struct name##_table_t name = { .max_entries = size }

/* Frontend -> its index in lb_current and lb_count_front. */
LB_MAP_READ("hash", struct lb_frontend_key, __u32, lb_frontends, LB_MAX_FRONTENDS);
/* Index -> descriptor, 0 = none. Writing this word commits a change. */
LB_MAP_READ("array", int, __u64, lb_current, LB_MAX_FRONTENDS);
/* Descriptors: what a frontend does. */
LB_MAP_READ("array", int, struct lb_desc, lb_descs, LB_MAX_DESCS);
/* Slot -> backend index. */
LB_MAP_READ("array", int, __u32, lb_slots, LB_MAX_SLOTS);
/* 2 * frontend index, + 1 for non-local sources -> turn of round-robin. */
LB_MAP("array", int, __u32, lb_turns, LB_MAX_DESCS);
/* Backend index -> backend. */
LB_MAP_READ("array", int, struct lb_backend, lb_backends, LB_MAX_BACKENDS);
/* Backend index -> failed connections in a row. */
LB_MAP("array", int, struct lb_failures, lb_failures, LB_MAX_BACKENDS);
/* Backend index -> open connections, for the scheduler that compares them. */
LB_MAP("array", int, __s64, lb_open, LB_MAX_BACKENDS);
/* Backend index -> how long it takes to answer, for the scheduler that compares that. */
LB_MAP("array", int, struct lb_latency, lb_latencies, LB_MAX_BACKENDS);
/* Endpoint of this node, also of Services without DSR -> its index in lb_backends. */
LB_MAP_READ_BY_USE("hash", struct lb_pod_key, __u32, lb_pods_here, LB_MAX_BACKENDS);
/* Pod on another node -> the address of that node, to which its packets are tunneled. */
LB_MAP_READ_BY_USE("hash", struct lb_addr, struct lb_addr, lb_pod_nodes, LB_MAX_BACKENDS);
/* Addresses of the cluster's other nodes, from which tunneled packets are accepted. */
LB_MAP_READ_BY_USE("hash", struct lb_addr, __u8, lb_nodes, LB_MAX_NODES);
/* Another node -> the MTU of the path to it, if a router has told this node (tunnel_mtu.h). */
LB_MAP("lru_hash", struct lb_addr, struct lb_path_mtu, lb_tunnel_mtus, LB_MAX_PATH_MTUS);
/* The keys of tunnels. Tools never show them. */
LB_MAP_READ("array", int, struct lb_tunnel_keys, lb_tunnel_keys, 1);
/* VIP or node address -> its index in lb_addr_flags. */
LB_MAP_READ("hash", struct lb_addr, __u32, lb_addrs, LB_MAX_ADDRS);
/* Last 16 bits of an address, or NodePort -> flags; lb_addr_fold() of an address -> its index. */
LB_MAP_READ("array", int, struct lb_dest, lb_dest_filter, LB_FILTER_SIZE);
/* An address and its flags; the address saves a lookup in lb_addrs. */
LB_MAP_READ("array", int, struct lb_addr_state, lb_addr_flags, LB_MAX_ADDRS);
/* Id of a set of source ranges and prefix -> 1: clients who may open connections. */
LB_MAP_READ_BY_USE("lpm_trie", struct lb_source_range, __u8, lb_src_ranges, LB_MAX_SRC_RANGES);
/* Service id -> limits of its connections (limits.h). */
LB_MAP_READ_BY_USE("hash", __u32, struct lb_limit, lb_limits, LB_MAX_LIMITS);
/* Service id -> name. */
LB_MAP_READ("hash", __u32, struct lb_name, lb_names, LB_MAX_NAMES);
/* ifindex -> device. */
LB_MAP_READ_BY_USE("hash", __u32, struct lb_device, lb_devices, LB_MAX_DEVICES);
/* ifindex modulo LB_UPLINKS -> one host device; the others are in lb_devices only. */
LB_MAP_READ("array", int, struct lb_uplink, lb_uplinks, LB_UPLINKS);
/* Device and prefix of the next hop -> SNAT address, for devices with several subnets. */
LB_MAP_READ_BY_USE("lpm_trie", struct lb_subnet, struct lb_addr, lb_subnets, LB_MAX_SUBNETS);
/* Network namespace cookie -> host or pod; an unknown one is a pod without tc cover, or nested. */
LB_MAP_READ_BY_USE("hash", __u64, struct lb_netns, lb_netns, LB_MAX_NETNS);
/* Id of the cgroup of a pod under tc cover -> 1: below it, an unknown namespace is left alone. */
LB_MAP_READ_BY_USE("hash", __u64, __u8, lb_pod_cgroups, LB_MAX_NETNS);
/* Settings that can change without a compile. */
LB_MAP_READ("array", int, struct lb_settings, lb_settings, 1);
/* The networks from which Services get their ClusterIPs. */
LB_MAP_READ("array", int, struct lb_service_nets, lb_service_nets, 1);
/* Established flows of TCP and SCTP. The agent deletes them; they are never evicted. */
LB_MAP_BY_USE("hash", struct lb_tuple, struct lb_conntrack, lb_conntrack, LB_MAX_CONNTRACK);
/* Half-open and closed flows of TCP and SCTP. */
LB_MAP("lru_hash", struct lb_tuple, struct lb_conntrack, lb_ct_short, LB_MAX_CT_SHORT);
/* UDP flows except streams. */
LB_MAP("lru_hash", struct lb_tuple, struct lb_conntrack, lb_ct_udp, LB_MAX_CT_UDP);
/* UDP streams. The agent deletes them; they are never evicted. */
LB_MAP_BY_USE("hash", struct lb_tuple, struct lb_conntrack, lb_ct_stream, LB_MAX_CT_STREAM);
/* Flows that went in tunnels for a while, whose answers this node does not see: one entry each. */
LB_MAP("lru_hash", struct lb_tuple, struct lb_conntrack, lb_ct_dsr, LB_MAX_CT_DSR);
/* Addresses, protocol and identification (in place of the ports) -> ports. */
LB_MAP("lru_hash", struct lb_tuple, struct lb_fragment, lb_fragments, LB_MAX_FRAGMENTS);
/* Masqueraded packet that the stack routes -> what it becomes when it leaves. */
LB_MAP("lru_hash", struct lb_tuple, struct lb_stack_nat, lb_stack_nat, LB_MAX_STACK_NAT);
/* Hash of source address and port -> hooks at which packets from there may be replies. */
LB_MAP("array", int, struct lb_reply_ends, lb_reply_filter, LB_FILTER_SIZE);
/* Hash of a packet's addresses and ports -> lb_flow_mark() when a flow started using them. */
LB_MAP("array", int, __u32, lb_flow_filter, LB_FILTER_SIZE);
/* Hash of address and port -> whether sockets may have been translated to it. */
LB_MAP("array", int, __u8, lb_peer_filter, LB_FILTER_SIZE);
/*
 * What a UDP socket was translated to, and the reverse; TCP is in lb_connections. The agent deletes
 * what an unconnected socket leaves that has sent to several frontends.
 */
LB_MAP_BY_USE("hash", struct lb_socket_key, struct lb_socket, lb_sockets, LB_MAX_SOCKETS);
/* Client of a Service port -> backend. Changes in place, by 8-byte stores. The agent expires it. */
LB_MAP_BY_USE("hash", struct lb_client_key, struct lb_affinity, lb_affinity, LB_MAX_AFFINITY);
/* Client of a Service port -> its last connection. Changes in place, by 8-byte stores. */
LB_MAP("lru_hash", struct lb_client_key, struct lb_client, lb_clients, LB_MAX_CLIENTS);
/* Client of a Service port with limits -> what it uses of them. Changes in place. */
LB_MAP("lru_hash", struct lb_client_key, struct lb_client_use, lb_client_uses, LB_MAX_CLIENTS);
/* Last bits of a socket cookie -> TCP connection translated at the socket (connection_place.h). */
LB_MAP("array", int, struct lb_conn_place, lb_conn_places, LB_CONN_PLACES);
/* Socket cookie -> TCP connection whose place in lb_conn_places is taken by another one. */
LB_MAP_BY_USE("hash", __u64, struct lb_connection, lb_connections, LB_MAX_SOCKETS);
/* Counters by index of a frontend, by index of a backend, by drop reason and place. */
LB_MAP("percpu_array", int, struct lb_counts, lb_count_front, LB_MAX_FRONTENDS);
LB_MAP("percpu_array", int, struct lb_counts, lb_count_back, LB_MAX_BACKENDS);
LB_MAP("percpu_hash", struct lb_drop_key, __u64, lb_count_drop, LB_MAX_DROPS);
/* enum lb_xdp_result -> packets. */
LB_MAP("percpu_array", int, __u64, lb_count_xdp, LB_XDP_RESULTS);
/* Flow records for the agent. */
LB_RING(lb_flows, LB_FLOW_RING);
/* enum lb_flow_lost -> number of records lost. */
LB_MAP("percpu_array", int, __u64, lb_flow_lost, LB_LOST_REASONS);
/* Histograms of ended flows, by enum lb_path and enum lb_histogram_kind. */
LB_MAP("percpu_array", int, struct lb_histogram, lb_histograms, LB_HISTOGRAMS);
/* Hash of a next hop -> the second in which the stack last sent a packet there. Not pinned. */
BPF_PERCPU_ARRAY(lb_xdp_neighbours, __u64, LB_XDP_NEIGHBOURS);
/* Hash of a question -> the kernel's answer (next_hop.h). Not pinned. */
BPF_PERCPU_ARRAY(lb_next_hops, struct lb_next_hop, LB_NEXT_HOPS);
/* Hash of a packet that XDP passes to tc -> the backend chosen for it. Not pinned. */
BPF_ARRAY(lb_xdp_choices, __u64, LB_XDP_CHOICES);
/* What this CPU works on. Not pinned: it is removed with the programs. */
BPF_PERCPU_ARRAY(lb_scratch, struct lb_scratch, 1);
/* What the pins were made from. */
LB_MAP_READ("array", int, struct lb_meta, lb_meta, 1);

static __always_inline struct lb_settings *lb_settings_get(void)
{
	int zero = 0;

	return lb_settings.lookup(&zero);
}

/*
 * NULL: never, but the verifier does not know. The asm keeps the offset behind the check; the
 * assumption spares the caller's check another branch.
 */
static __always_inline void *lb_scratch_at(__u32 offset)
{
	int zero = 0;
	void *scratch = lb_scratch.lookup(&zero);

	if (!scratch)
		return NULL;
	asm volatile("" : "+r"(scratch));
	__builtin_assume(scratch + offset != NULL);
	return scratch + offset;
}

/* A field of this CPU's struct lb_scratch. */
#define LB_SCRATCH(field)                                          \
	((typeof(((struct lb_scratch *)0)->field) *)lb_scratch_at( \
		offsetof(struct lb_scratch, field)))

#endif
