/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Compile-time sizes. The loader may override those with an #ifndef by -D. */
#ifndef LB_CONFIG_H
#define LB_CONFIG_H

#ifndef LB_PIN_MAPS
#define LB_PIN_MAPS "/sys/fs/bpf/ebpflb/maps"
#endif

#ifndef LB_MAX_FRONTENDS
#define LB_MAX_FRONTENDS 4096
#endif

/* Every update takes a new descriptor before it frees the old one. */
#ifndef LB_MAX_DESCS
#define LB_MAX_DESCS (2 * LB_MAX_FRONTENDS)
#endif

#ifndef LB_MAX_SLOTS
#define LB_MAX_SLOTS 65536
#endif

#ifndef LB_MAX_BACKENDS
#define LB_MAX_BACKENDS 4096
#endif

#ifndef LB_MAX_ADDRS
#define LB_MAX_ADDRS 8192
#endif

#ifndef LB_MAX_SRC_RANGES
#define LB_MAX_SRC_RANGES 16384
#endif

#ifndef LB_MAX_NAMES
#define LB_MAX_NAMES 8192
#endif

#ifndef LB_MAX_CONNTRACK
#define LB_MAX_CONNTRACK 131072
#endif

#ifndef LB_MAX_CT_SHORT
#define LB_MAX_CT_SHORT 65536
#endif

#ifndef LB_MAX_SOCKETS
#define LB_MAX_SOCKETS 65536
#endif

#ifndef LB_MAX_AFFINITY
#define LB_MAX_AFFINITY 65536
#endif

#define LB_FILTER_SIZE 65536
#define LB_MAX_FRAGMENTS 8192
#define LB_MAX_DEVICES 4096
#define LB_UPLINKS 64
#define LB_MAX_NETNS 4096
#define LB_MAX_DROPS 1024
/* One for each path and kind. */
#define LB_HISTOGRAMS 6
/* In bytes: a power of two, and a multiple of the page size. */
#define LB_FLOW_RING 1048576

/*
 * Whether the kernel has bpf_set_retval. Without it, connections that are refused are left to tc.
 */
#ifndef LB_HAS_SET_RETVAL
#define LB_HAS_SET_RETVAL 1
#endif

/* Whether the kernel has bpf_ktime_get_coarse_ns. */
#ifndef LB_HAS_COARSE_CLOCK
#define LB_HAS_COARSE_CLOCK 1
#endif

/* Whether lb_sock_ops is attached and follows TCP connections. */
#ifndef LB_HAS_SOCK_OPS
#define LB_HAS_SOCK_OPS 1
#endif

/* How many random source ports are tried before a packet is dropped with LB_DROP_SNAT_PORTS. */
#define LB_SNAT_ATTEMPTS 16
/* The first attempts, which skip the port of a flow that ended only recently. */
#define LB_SNAT_CHOOSY_ATTEMPTS 4
/* The last attempts, which may take the port of a handshake that was never completed. */
#define LB_SNAT_LAST_RESORTS 4

/* ICMP errors per second and CPU; the default of the kernel's icmp_msgs_per_sec. */
#define LB_REJECTS_PER_SECOND 1000

#endif
