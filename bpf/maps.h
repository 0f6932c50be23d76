/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Every map. A hash entry is written once and never changed; what changes lies in an array. */
#ifndef LB_MAPS_H
#define LB_MAPS_H

#include "config.h"
#include "packet.h"
#include "types.h"

#define LB_MAP(type, key, leaf, name, size) \
	BPF_TABLE_PINNED(type, key, leaf, name, size, LB_PIN_MAPS "/" #name)
#define LB_TRIE(key, leaf, name, size)                                             \
	BPF_TABLE_PINNED("lpm_trie", key, leaf, name, size, LB_PIN_MAPS "/" #name, \
			 BPF_F_NO_PREALLOC)
/* bcc has no macro for one that is pinned. Its size is in bytes; it has no keys and values. */
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
LB_MAP("hash", struct lb_frontend_key, __u32, lb_frontends, LB_MAX_FRONTENDS);
/* Index -> descriptor, 0 = none. Writing this word commits a change. */
LB_MAP("array", int, __u64, lb_current, LB_MAX_FRONTENDS);
/* What a frontend does. */
LB_MAP("array", int, struct lb_desc, lb_descs, LB_MAX_DESCS);
/* Slot -> backend index. */
LB_MAP("array", int, __u32, lb_slots, LB_MAX_SLOTS);
/* Backend index -> endpoint. */
LB_MAP("array", int, struct lb_backend, lb_backends, LB_MAX_BACKENDS);
/* Address we have to do with (VIP, node) -> its index in lb_addr_flags. */
LB_MAP("hash", struct lb_addr, __u32, lb_addrs, LB_MAX_ADDRS);
/* By the end of an address, or a NodePort: what may be meant; by lb_addr_fold(): which address. */
LB_MAP("array", int, struct lb_dest, lb_dest_filter, LB_FILTER_SIZE);
/* Flags of an address, and the address, so that lb_addrs need not be asked. */
LB_MAP("array", int, struct lb_addr_state, lb_addr_flags, LB_MAX_ADDRS);
/* Who may open connections to a descriptor: in, where a range of its source_ranges covers it. */
LB_TRIE(struct lb_source_range, __u8, lb_src_ranges, LB_MAX_SRC_RANGES);
/* Service id -> name. */
LB_MAP("hash", __u32, struct lb_name, lb_names, LB_MAX_NAMES);
/* Interface -> what it is. */
LB_MAP("hash", __u32, struct lb_device, lb_devices, LB_MAX_DEVICES);
/* End of an ifindex -> one of the host devices with it; the others are in lb_devices only. */
LB_MAP("array", int, struct lb_uplink, lb_uplinks, LB_UPLINKS);
/* Network namespace cookie -> who asks; an unknown one is a pod without tc cover. */
LB_MAP("hash", __u64, struct lb_netns, lb_netns, LB_MAX_NETNS);
/* What may change without a new compile. */
LB_MAP("array", int, struct lb_settings, lb_settings, 1);
/* The networks that Services get their ClusterIPs from. */
LB_MAP("array", int, struct lb_service_nets, lb_service_nets, 1);
/* Established flows; expired by the agent, never dropped silently. */
LB_MAP("hash", struct lb_tuple, struct lb_conntrack, lb_conntrack, LB_MAX_CONNTRACK);
/* Half-open, closed and UDP flows. */
LB_MAP("lru_hash", struct lb_tuple, struct lb_conntrack, lb_ct_short, LB_MAX_CT_SHORT);
/* Addresses, protocol and identification (in place of the ports) -> ports. */
LB_MAP("lru_hash", struct lb_tuple, struct lb_fragment, lb_fragments, LB_MAX_FRAGMENTS);
/* Ends of source address and port -> whether replies of flows may have them. */
LB_MAP("array", int, struct lb_reply_ends, lb_reply_filter, LB_FILTER_SIZE);
/* Ends of address and port -> whether sockets may have been translated to that. */
LB_MAP("array", int, __u8, lb_peer_filter, LB_FILTER_SIZE);
/* What a UDP socket was translated to, and back; TCP has lb_connections. */
LB_MAP("lru_hash", struct lb_socket_key, struct lb_socket, lb_sockets, LB_MAX_SOCKETS);
/* Client of a Service port -> its backend; changes in place, by stores of 8 bytes. */
LB_MAP("lru_hash", struct lb_affinity_key, struct lb_affinity, lb_affinity, LB_MAX_AFFINITY);
/* Socket cookie -> a TCP connection that was translated at the socket. */
LB_MAP("lru_hash", __u64, struct lb_connection, lb_connections, LB_MAX_SOCKETS);
/* Per frontend index, per backend index, per reason and place. */
LB_MAP("percpu_array", int, struct lb_counts, lb_count_front, LB_MAX_FRONTENDS);
LB_MAP("percpu_array", int, struct lb_counts, lb_count_back, LB_MAX_BACKENDS);
LB_MAP("percpu_hash", struct lb_drop_key, __u64, lb_count_drop, LB_MAX_DROPS);
/* What is told of single flows, for the agent to read. */
LB_RING(lb_flows, LB_FLOW_RING);
/* enum lb_flow_lost -> records that are missing in lb_flows. */
LB_MAP("percpu_array", int, __u64, lb_flow_lost, LB_LOST_REASONS);
/* Of ended flows, per enum lb_path and enum lb_histogram_kind. */
LB_MAP("percpu_array", int, struct lb_histogram, lb_histograms, LB_HISTOGRAMS);
/* The entry that is being made: too large for the stack. Not pinned, it goes with the programs. */
BPF_PERCPU_ARRAY(lb_ct_scratch, struct lb_conntrack, 1);
/* The second in the upper half, in the lower one the ICMP errors sent in it. Not pinned. */
BPF_PERCPU_ARRAY(lb_rejects, __u64, 1);
/* A packet of which the verifier is to know nothing more. Not pinned. */
BPF_PERCPU_ARRAY(lb_forgotten, struct lb_packet, 1);
/* A flow that the packet ends. Not pinned. */
BPF_PERCPU_ARRAY(lb_endings, struct lb_ending, 1);
/* As lb_rejects: the records told in this second. Not pinned. */
BPF_PERCPU_ARRAY(lb_flow_rate, __u64, 1);
/* What an ICMP error quotes: for the same reason, and not pinned either. */
BPF_PERCPU_ARRAY(lb_quotes, struct lb_quote, 1);
/* How an SCTP checksum must change once the packet is ready. Not pinned. */
BPF_PERCPU_ARRAY(lb_sctp_changes, struct lb_sctp_change, 1);
/* What the pins were made from. */
LB_MAP("array", int, struct lb_meta, lb_meta, 1);

#endif
