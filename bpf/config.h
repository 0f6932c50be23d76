/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Compile-time sizes. The loader may override those with an #ifndef by -D, but creates the maps
 * with an LB_MAX_... size itself, so that a new size needs no compile.
 */
#ifndef LB_CONFIG_H
#define LB_CONFIG_H

#ifndef LB_PIN_MAPS
#define LB_PIN_MAPS "/sys/fs/bpf/ebpflb/maps"
#endif

#ifndef LB_MAX_FRONTENDS
#define LB_MAX_FRONTENDS 512
#endif

/* Every update takes a new descriptor before it frees the old one. */
#ifndef LB_MAX_DESCS
#define LB_MAX_DESCS (2 * LB_MAX_FRONTENDS)
#endif

#ifndef LB_MAX_SLOTS
#define LB_MAX_SLOTS 8192
#endif

#ifndef LB_MAX_BACKENDS
#define LB_MAX_BACKENDS 1024
#endif

#ifndef LB_MAX_ADDRS
#define LB_MAX_ADDRS 1024
#endif

#ifndef LB_MAX_SRC_RANGES
#define LB_MAX_SRC_RANGES 16384
#endif

#ifndef LB_MAX_LIMITS
#define LB_MAX_LIMITS 512
#endif

#ifndef LB_MAX_NAMES
#define LB_MAX_NAMES 512
#endif

#ifndef LB_MAX_CONNTRACK
#define LB_MAX_CONNTRACK 131072
#endif

#ifndef LB_MAX_CT_SHORT
#define LB_MAX_CT_SHORT 16384
#endif

#ifndef LB_MAX_CT_UDP
#define LB_MAX_CT_UDP 16384
#endif

#ifndef LB_MAX_CT_STREAM
#define LB_MAX_CT_STREAM 65536
#endif

#ifndef LB_MAX_CT_DSR
#define LB_MAX_CT_DSR 1024
#endif

#ifndef LB_MAX_STACK_NAT
#define LB_MAX_STACK_NAT 4096
#endif

#ifndef LB_MAX_SOCKETS
#define LB_MAX_SOCKETS 65536
#endif

#ifndef LB_MAX_AFFINITY
#define LB_MAX_AFFINITY 65536
#endif

/* Whether lb_xdp is loaded, by the settings. */
#ifndef LB_HAS_XDP
#define LB_HAS_XDP 1
#endif

/* Whether this node takes part in direct server return, by the settings. */
#ifndef LB_HAS_DSR
#define LB_HAS_DSR 1
#endif

/* Whether XDP programs may see frames of several buffers. */
#ifndef LB_HAS_XDP_FRAGS
#define LB_HAS_XDP_FRAGS 1
#endif

#define LB_FILTER_SIZE 65536
/* A power of two. */
#define LB_CONN_PLACES 8192
#define LB_XDP_NEIGHBOURS 256
/* Powers of two. */
#define LB_NEXT_HOPS 512
#define LB_XDP_CHOICES 4096
#define LB_MAX_NODES 16384
#define LB_MAX_PATH_MTUS 4096
#define LB_MAX_FRAGMENTS 8192
#define LB_MAX_CLIENTS 16384
#define LB_MAX_DEVICES 4096
#define LB_UPLINKS 64
#define LB_MAX_SUBNETS 1024
#define LB_MAX_NETNS 4096
#define LB_MAX_DROPS 1024
/* One for each path and kind. */
#define LB_HISTOGRAMS 6
/* In bytes: a power of two, and a multiple of the page size. */
#define LB_FLOW_RING 1048576

/*
 * Whether the kernel has bpf_set_retval. Without it, refused connections are left to tc.
 */
#ifndef LB_HAS_SET_RETVAL
#define LB_HAS_SET_RETVAL 1
#endif

/* Whether the kernel has bpf_ktime_get_coarse_ns. */
#ifndef LB_HAS_COARSE_CLOCK
#define LB_HAS_COARSE_CLOCK 1
#endif

/*
 * Whether bpf_fib_lookup compares a packet's length with the MTU of its route, and returns that
 * MTU.
 */
#ifndef LB_HAS_FIB_MTU
#define LB_HAS_FIB_MTU 1
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
/* Answers to pings, likewise. */
#define LB_ECHOES_PER_SECOND 1000

#endif
