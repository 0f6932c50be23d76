/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What identifies a socket, and its peer. */
#ifndef LB_SOCK_PEER_H
#define LB_SOCK_PEER_H

#include "types.h"

/* bcc 0.26 declares this helper as u32; the kernel's is u64. */
static __u64 (*lb_get_socket_cookie)(void *ctx)
	__attribute__((unused)) = (void *)BPF_FUNC_get_socket_cookie;

/* The peer that the socket requested and, after LB_REDIRECT, the one it gets. */
struct lb_peer {
	struct lb_addr addr;
	__be16 port;
};

#endif
