/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The entry points of socket LB, which replaces the destination before a packet exists. IPv4 and
 * IPv6 differ only in how the address in the context is read and written.
 */
#include "socket.h"

/* LB_REDIRECT: the peer has changed. */
typedef int (*lb_socket_step)(struct bpf_sock_addr *ctx, struct lb_peer *peer);

static __always_inline void lb_peer_get(struct bpf_sock_addr *ctx, struct lb_addr *addr,
					int is_ipv4)
{
	if (is_ipv4) {
		lb_addr_from_ipv4(addr, ctx->user_ip4);
		return;
	}
	addr->word[0] = ctx->user_ip6[0];
	addr->word[1] = ctx->user_ip6[1];
	addr->word[2] = ctx->user_ip6[2];
	addr->word[3] = ctx->user_ip6[3];
}

static __always_inline void lb_peer_set(struct bpf_sock_addr *ctx, const struct lb_peer *peer,
					int is_ipv4)
{
	if (is_ipv4) {
		ctx->user_ip4 = peer->addr.word[3];
	} else {
		ctx->user_ip6[0] = peer->addr.word[0];
		ctx->user_ip6[1] = peer->addr.word[1];
		ctx->user_ip6[2] = peer->addr.word[2];
		ctx->user_ip6[3] = peer->addr.word[3];
	}
	ctx->user_port = peer->port;
}

/* is_ipv4, step: constants. */
static __always_inline int lb_socket_run(struct bpf_sock_addr *ctx, int is_ipv4,
					 lb_socket_step step)
{
	struct lb_peer peer = {};
	int verdict;

	lb_peer_get(ctx, &peer.addr, is_ipv4);
	verdict = step(ctx, &peer);
	if (verdict == LB_REDIRECT)
		lb_peer_set(ctx, &peer, is_ipv4);
	return lb_socket_exit(verdict);
}

int lb_connect4(struct bpf_sock_addr *ctx)
{
	return lb_socket_run(ctx, 1, lb_socket_connect);
}

int lb_connect6(struct bpf_sock_addr *ctx)
{
	return lb_socket_run(ctx, 0, lb_socket_connect);
}

int lb_sendmsg4(struct bpf_sock_addr *ctx)
{
	return lb_socket_run(ctx, 1, lb_socket_send);
}

int lb_sendmsg6(struct bpf_sock_addr *ctx)
{
	return lb_socket_run(ctx, 0, lb_socket_send);
}

/* recvmsg and getpeername cannot fail: their programs always return 1. */
int lb_recvmsg4(struct bpf_sock_addr *ctx)
{
	return lb_socket_run(ctx, 1, lb_sock_nat_reverse);
}

int lb_recvmsg6(struct bpf_sock_addr *ctx)
{
	return lb_socket_run(ctx, 0, lb_sock_nat_reverse);
}

int lb_getpeer4(struct bpf_sock_addr *ctx)
{
	return lb_socket_run(ctx, 1, lb_sock_nat_reverse_any);
}

int lb_getpeer6(struct bpf_sock_addr *ctx)
{
	return lb_socket_run(ctx, 0, lb_sock_nat_reverse_any);
}

int lb_sock_release(struct bpf_sock *ctx)
{
	lb_sock_nat_release(ctx);
	return 1;
}
