/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The decision for one connect() or sendmsg(), and the record that lets a socket see the frontend. */
#ifndef LB_SOCKET_H
#define LB_SOCKET_H

#include "addr.h"
#include "backend.h"
#include "counters.h"
#include "frontend.h"
#include "maps.h"
#include "verdict.h"

/* bcc 0.26 declares this helper as u32; the kernel's is u64. */
static __u64 (*lb_get_socket_cookie)(void *ctx) = (void *)BPF_FUNC_get_socket_cookie;

/* Where the socket wants to go, and after LB_REDIRECT where it goes instead. */
struct lb_peer {
	struct lb_addr addr;
	__be16 port;
};

static __always_inline __u32 lb_netns_flags(struct bpf_sock_addr *ctx)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);
	struct lb_netns *netns = lb_netns.lookup(&cookie);

	return netns ? netns->flags : 0;
}

/*
 * Whether this hook is the one to translate, not tc: TCP always, UDP for the host and for pods
 * without tc cover, because a connected UDP socket would stay with a backend that is gone.
 */
static __always_inline int lb_socket_is_ours(struct bpf_sock_addr *ctx)
{
	struct lb_settings *settings;
	int zero = 0;

	if (ctx->protocol == IPPROTO_TCP) {
		settings = lb_settings.lookup(&zero);
		if (settings && !(settings->flags & LB_SETTING_SOCKET_HOST))
			return 1;
	}
	return !(lb_netns_flags(ctx) & LB_NETNS_COVERED);
}

/* NodePorts: any accepted node address; the loopback ones only for processes of the host. */
static __always_inline int lb_socket_node_port(struct bpf_sock_addr *ctx,
					       struct lb_frontend_key *key, struct lb_match *match)
{
	__u64 flags;

	if (lb_addr_is_own_host(&key->addr))
		return lb_node_port_lookup(key, match) && (lb_netns_flags(ctx) & LB_NETNS_HOST);
	flags = lb_addr_flags_of(&key->addr);
	if (flags & LB_ADDR_NODE_PORT && lb_node_port_lookup(key, match))
		return 1;
	return flags & LB_ADDR_CLUSTER_IP ? -LB_DROP_UNKNOWN_PORT : 0;
}

/* 1 with match filled, 0 when not a frontend, or a negative reason. */
static __always_inline int lb_socket_match(struct bpf_sock_addr *ctx, struct lb_frontend_key *key,
					   struct lb_match *match)
{
	if (!lb_addr_is_own_host(&key->addr) && lb_frontend_lookup(key, match))
		return 1;
	return lb_socket_node_port(ctx, key, match);
}

/* Lets recvmsg and getpeername show the frontend; for sendmsg keeps the choice. */
static __always_inline void lb_socket_record(struct bpf_sock_addr *ctx, int direction,
					     const struct lb_peer *from, const struct lb_peer *to,
					     const struct lb_choice *choice)
{
	struct lb_socket_key key = {
		.cookie = lb_get_socket_cookie(ctx),
		.peer = from->addr,
		.port = from->port,
		.proto = ctx->protocol,
		.direction = direction,
	};
	struct lb_socket value = {
		.peer = to->addr,
		.port = to->port,
		.backend = choice->index,
		.generation = choice->backend->generation,
		.service = choice->backend->service,
	};

	lb_sockets.update(&key, &value);
}

/* The backend of an earlier datagram of this socket to the same frontend, while it is usable. */
static __always_inline int lb_socket_recall(struct bpf_sock_addr *ctx, struct lb_peer *peer)
{
	struct lb_socket_key key = {
		.cookie = lb_get_socket_cookie(ctx),
		.peer = peer->addr,
		.port = peer->port,
		.proto = ctx->protocol,
		.direction = LB_DIR_ORIGINAL,
	};
	struct lb_socket *socket = lb_sockets.lookup(&key);

	if (!socket || !lb_backend_usable(socket->backend, socket->generation))
		return 0;
	peer->addr = socket->peer;
	peer->port = socket->port;
	return 1;
}

/*
 * LB_PASS: not a frontend, or not for this hook. A range that is empty and drops is left to tc as
 * well, where nothing is sent back; a refusal is answered here.
 */
static __always_inline int lb_socket_select(struct bpf_sock_addr *ctx, const struct lb_peer *peer,
					    struct lb_choice *choice)
{
	struct lb_frontend_key key = { .addr = peer->addr,
				       .port = peer->port,
				       .proto = ctx->protocol };
	struct lb_match match = {};
	int verdict = lb_socket_match(ctx, &key, &match);

	if (!verdict || !lb_socket_is_ours(ctx))
		return LB_PASS;
	if (verdict < 0)
		return verdict;
	verdict = lb_backend_select(&match.desc->local, choice);
	if (verdict == -LB_DROP_NO_LOCAL_ENDPOINT)
		return LB_PASS;
	if (verdict)
		lb_count_failure(match.index, verdict);
	else
		lb_count_connection(match.index, choice->index);
	return verdict;
}

static __always_inline void lb_peer_take(struct lb_peer *peer, const struct lb_choice *choice)
{
	peer->addr = choice->backend->addr;
	peer->port = choice->backend->port;
}

static __always_inline int lb_socket_connect(struct bpf_sock_addr *ctx, struct lb_peer *peer)
{
	struct lb_choice choice = {};
	struct lb_peer frontend;
	int verdict;

	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
		return LB_PASS;
	peer->port = ctx->user_port;
	frontend = *peer;
	verdict = lb_socket_select(ctx, peer, &choice);
	if (verdict)
		return verdict;
	lb_peer_take(peer, &choice);
	lb_socket_record(ctx, LB_DIR_REPLY, peer, &frontend, &choice);
	return LB_REDIRECT;
}

static __always_inline int lb_socket_send(struct bpf_sock_addr *ctx, struct lb_peer *peer)
{
	struct lb_choice choice = {};
	struct lb_peer frontend;
	int verdict;

	if (ctx->protocol != IPPROTO_UDP)
		return LB_PASS;
	peer->port = ctx->user_port;
	if (lb_socket_recall(ctx, peer))
		return LB_REDIRECT;
	frontend = *peer;
	verdict = lb_socket_select(ctx, peer, &choice);
	if (verdict)
		return verdict;
	lb_peer_take(peer, &choice);
	lb_socket_record(ctx, LB_DIR_ORIGINAL, &frontend, peer, &choice);
	lb_socket_record(ctx, LB_DIR_REPLY, peer, &frontend, &choice);
	return LB_REDIRECT;
}

/* 1 when the peer is a backend this socket was translated to; peer becomes the frontend. */
static __always_inline int lb_socket_reverse(struct bpf_sock_addr *ctx, struct lb_peer *peer)
{
	struct lb_socket_key key = {
		.cookie = lb_get_socket_cookie(ctx),
		.peer = peer->addr,
		.port = ctx->user_port,
		.proto = ctx->protocol,
		.direction = LB_DIR_REPLY,
	};
	struct lb_socket *socket = lb_sockets.lookup(&key);

	if (!socket)
		return 0;
	peer->addr = socket->peer;
	peer->port = socket->port;
	return 1;
}

/* Frees the record of a connected socket; those of unconnected ones age out of the LRU. */
static __always_inline void lb_socket_forget(struct bpf_sock *ctx)
{
	struct lb_socket_key key = {
		.cookie = lb_get_socket_cookie(ctx),
		.port = ctx->dst_port,
		.proto = ctx->protocol,
		.direction = LB_DIR_REPLY,
	};
	__be32 ipv4 = *(volatile __be32 *)&ctx->dst_ip4;

	if (!key.port)
		return;
	/* A socket of family IPv6 that talks IPv4 has the mapped address here as well. */
	key.peer.word[0] = ctx->dst_ip6[0];
	key.peer.word[1] = ctx->dst_ip6[1];
	key.peer.word[2] = ctx->dst_ip6[2];
	key.peer.word[3] = ctx->dst_ip6[3];
	if (ctx->family == LB_AF_INET)
		lb_addr_from_ipv4(&key.peer, ipv4);
	lb_sockets.delete(&key);
}

/* 1 lets the call go on; 0 fails it with the errno set here. */
static __always_inline int lb_socket_exit(int verdict)
{
	if (verdict >= 0)
		return 1;
	lb_count_drop_reason(-verdict);
#if LB_HAS_SET_RETVAL
	bpf_set_retval(-ECONNREFUSED);
	return 0;
#else
	return 1;
#endif
}

#endif
