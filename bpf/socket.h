/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The decision for one connect() or sendmsg(). */
#ifndef LB_SOCKET_H
#define LB_SOCKET_H

#include "addr.h"
#include "backend.h"
#include "counters.h"
#include "frontend.h"
#include "maps.h"
#include "record.h"
#include "verdict.h"

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
	lb_peer_filter_add(peer);
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
