/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs need of the kernel and of bcc, for a process: skb, maps and helpers. It is strict
 * where the kernel is: a pointer into a packet, or to an element that is gone, is freed memory as
 * soon as it is invalid.
 */
#ifndef NATIVE_KERNEL_H
#define NATIVE_KERNEL_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define __sk_buff kernel_sk_buff
#include <linux/bpf.h>
#include <linux/if_packet.h>
#undef __sk_buff

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define bpf_htons __builtin_bswap16
#define bpf_ntohs __builtin_bswap16
#define bpf_htonl __builtin_bswap32
#define bpf_ntohl __builtin_bswap32

/* data to data_end is a copy of the linear part; the packet has len bytes. l2: of the link header. */
struct __sk_buff {
	__u32 len, protocol, ifindex, ingress_ifindex, pkt_type, mark, vlan_present, vlan_tci,
		gso_size, gso_segs;
	struct bpf_sock *sk;
	long data, data_end;
	__u8 *packet;
	__u32 linear, l2;
};

#include "maps.h"
#include "calls.h"

#endif
