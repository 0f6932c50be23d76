/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The entry points of socket LB, which replaces the destination before a packet exists. IPv4 and
 * IPv6 differ only in how the address in the context is read and written.
 */
#include "socket.h"

static __always_inline void lb_peer_get4(struct bpf_sock_addr *ctx, struct lb_addr *addr)
{
	lb_addr_from_ipv4(addr, ctx->user_ip4);
}

static __always_inline void lb_peer_set4(struct bpf_sock_addr *ctx, const struct lb_peer *peer)
{
	ctx->user_ip4 = peer->addr.word[3];
	ctx->user_port = peer->port;
}

static __always_inline void lb_peer_get6(struct bpf_sock_addr *ctx, struct lb_addr *addr)
{
	addr->word[0] = ctx->user_ip6[0];
	addr->word[1] = ctx->user_ip6[1];
	addr->word[2] = ctx->user_ip6[2];
	addr->word[3] = ctx->user_ip6[3];
}

static __always_inline void lb_peer_set6(struct bpf_sock_addr *ctx, const struct lb_peer *peer)
{
	ctx->user_ip6[0] = peer->addr.word[0];
	ctx->user_ip6[1] = peer->addr.word[1];
	ctx->user_ip6[2] = peer->addr.word[2];
	ctx->user_ip6[3] = peer->addr.word[3];
	ctx->user_port = peer->port;
}

int lb_connect4(struct bpf_sock_addr *ctx)
{
	struct lb_peer peer = {};
	int verdict;

	lb_peer_get4(ctx, &peer.addr);
	verdict = lb_socket_connect(ctx, &peer);
	if (verdict == LB_REDIRECT)
		lb_peer_set4(ctx, &peer);
	return lb_socket_exit(verdict);
}

int lb_connect6(struct bpf_sock_addr *ctx)
{
	struct lb_peer peer = {};
	int verdict;

	lb_peer_get6(ctx, &peer.addr);
	verdict = lb_socket_connect(ctx, &peer);
	if (verdict == LB_REDIRECT)
		lb_peer_set6(ctx, &peer);
	return lb_socket_exit(verdict);
}

int lb_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct lb_peer peer = {};
	int verdict;

	lb_peer_get4(ctx, &peer.addr);
	verdict = lb_socket_send(ctx, &peer);
	if (verdict == LB_REDIRECT)
		lb_peer_set4(ctx, &peer);
	return lb_socket_exit(verdict);
}

int lb_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct lb_peer peer = {};
	int verdict;

	lb_peer_get6(ctx, &peer.addr);
	verdict = lb_socket_send(ctx, &peer);
	if (verdict == LB_REDIRECT)
		lb_peer_set6(ctx, &peer);
	return lb_socket_exit(verdict);
}

/* recvmsg and getpeername cannot fail: their programs always return 1. */
int lb_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct lb_peer peer = {};

	lb_peer_get4(ctx, &peer.addr);
	if (lb_sock_nat_reverse(ctx, &peer))
		lb_peer_set4(ctx, &peer);
	return 1;
}

int lb_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct lb_peer peer = {};

	lb_peer_get6(ctx, &peer.addr);
	if (lb_sock_nat_reverse(ctx, &peer))
		lb_peer_set6(ctx, &peer);
	return 1;
}

int lb_getpeer4(struct bpf_sock_addr *ctx)
{
	struct lb_peer peer = {};

	lb_peer_get4(ctx, &peer.addr);
	if (lb_sock_nat_reverse_any(ctx, &peer))
		lb_peer_set4(ctx, &peer);
	return 1;
}

int lb_getpeer6(struct bpf_sock_addr *ctx)
{
	struct lb_peer peer = {};

	lb_peer_get6(ctx, &peer.addr);
	if (lb_sock_nat_reverse_any(ctx, &peer))
		lb_peer_set6(ctx, &peer);
	return 1;
}

int lb_sock_release(struct bpf_sock *ctx)
{
	lb_sock_nat_release(ctx);
	return 1;
}
