/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Every map. A hash entry is written once and never changed; what changes lies in an array. */
#ifndef LB_MAPS_H
#define LB_MAPS_H

#include "config.h"
#include "types.h"

#define LB_MAP(type, key, leaf, name, size) \
	BPF_TABLE_PINNED(type, key, leaf, name, size, LB_PIN_MAPS "/" #name)

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
/* End of an address -> whether one in lb_addrs may have it. */
LB_MAP("array", int, __u8, lb_addr_filter, LB_FILTER_SIZE);
/* enum lb_addr_flag of an address. */
LB_MAP("array", int, __u64, lb_addr_flags, LB_MAX_ADDRS);
/* Service id -> name. */
LB_MAP("hash", __u32, struct lb_name, lb_names, LB_MAX_NAMES);
/* Interface -> what it is. */
LB_MAP("hash", __u32, struct lb_device, lb_devices, LB_MAX_DEVICES);
/* Network namespace cookie -> who asks; an unknown one is a pod without tc cover. */
LB_MAP("hash", __u64, struct lb_netns, lb_netns, LB_MAX_NETNS);
/* What may change without a new compile. */
LB_MAP("array", int, struct lb_settings, lb_settings, 1);
/* Established flows; expired by the agent, never dropped silently. */
LB_MAP("hash", struct lb_tuple, struct lb_conntrack, lb_conntrack, LB_MAX_CONNTRACK);
/* Half-open, closed and UDP flows. */
LB_MAP("lru_hash", struct lb_tuple, struct lb_conntrack, lb_ct_short, LB_MAX_CT_SHORT);
/* Ends of source address and port -> whether replies of flows may have them. */
LB_MAP("array", int, __u8, lb_reply_filter, LB_FILTER_SIZE);
/* Ends of address and port -> whether sockets may have been translated to that. */
LB_MAP("array", int, __u8, lb_peer_filter, LB_FILTER_SIZE);
/* What a socket was translated to, and back. */
LB_MAP("lru_hash", struct lb_socket_key, struct lb_socket, lb_sockets, LB_MAX_SOCKETS);
/* Per frontend index, per backend index, per drop reason. */
LB_MAP("percpu_array", int, struct lb_counts, lb_count_front, LB_MAX_FRONTENDS);
LB_MAP("percpu_array", int, struct lb_counts, lb_count_back, LB_MAX_BACKENDS);
LB_MAP("percpu_array", int, __u64, lb_count_drop, LB_DROP_REASONS);
/* The entry that is being made: too large for the stack. Not pinned, it goes with the programs. */
BPF_PERCPU_ARRAY(lb_ct_scratch, struct lb_conntrack, 1);
/* What the pins were made from. */
LB_MAP("array", int, struct lb_meta, lb_meta, 1);

#endif
