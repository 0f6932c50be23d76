/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Socket LB: the decision for one connect() or sendmsg(). */
#ifndef LB_SOCKET_H
#define LB_SOCKET_H

#include "addr.h"
#include "affinity.h"
#include "backend.h"
#include "counters.h"
#include "filter.h"
#include "frontend.h"
#include "limits.h"
#include "listener.h"
#include "maps.h"
#include "nested_namespace.h"
#include "open_connections.h"
#include "sock_client.h"
#include "sock_nat.h"
#include "source_range.h"
#include "verdict.h"

/* Most connections are not to a Service, which array lookups show without a hash lookup. */
static __always_inline int lb_socket_may_be_service(const struct lb_addr *addr)
{
	int flags = LB_ADDR_CLUSTER_IP | LB_ADDR_EXTERNAL | LB_ADDR_NODE;

	return lb_addr_is_own_host(addr) || lb_filter_flags_of(addr) & flags;
}

/*
 * Whether this hook translates, rather than tc. TCP: always, unless a setting leaves pods under tc
 * cover to tc, or this pod is left to tc; UDP: for the host and for pods without tc cover, because
 * a connected UDP socket would stay with a backend that is gone.
 */
static __always_inline int lb_socket_is_translated_here(struct bpf_sock_addr *ctx)
{
	__u32 netns = lb_netns_flags(ctx);
	int left_to_tc = LB_NETNS_COVERED;
	struct lb_settings *settings;

	if (!netns)
		return !lb_is_inside_covered_pod();
	if (ctx->protocol == IPPROTO_TCP) {
		settings = lb_settings_get();
		if (settings && !(settings->flags & LB_SETTING_SOCKET_HOST)) {
			if (!(settings->flags & LB_SETTING_TC_ONLY_PODS))
				return 1;
			left_to_tc = LB_NETNS_TC_ONLY;
		}
	}
	return !(netns & left_to_tc);
}

/* NodePorts on 127.0.0.0/8 and ::1 are optional, each by itself. A pod's loopback is its own. */
static __always_inline int lb_socket_localhost(struct bpf_sock_addr *ctx,
					       struct lb_frontend_key *key, struct lb_match *match)
{
	int is_ipv4 = lb_addr_is_ipv4(&key->addr);
	__u32 wanted = is_ipv4 ? LB_SETTING_LOCALHOST : LB_SETTING_LOCALHOST6;
	struct lb_settings *settings = lb_settings_get();

	if (!settings || !(settings->flags & wanted))
		return 0;
	return lb_node_port_lookup(key, match) && (lb_netns_flags(ctx) & LB_NETNS_HOST);
}

/* NodePorts on any accepted node address. */
static __always_inline int lb_socket_node_port(struct bpf_sock_addr *ctx,
					       struct lb_frontend_key *key, struct lb_match *match)
{
	__u64 flags;

	if (lb_addr_is_own_host(&key->addr))
		return lb_socket_localhost(ctx, key, match);
	flags = lb_addr_flags_of(&key->addr);
	if (flags & LB_ADDR_NODE_PORT && lb_node_port_lookup(key, match))
		return 1;
	return flags & LB_ADDR_CLUSTER_IP && !(flags & LB_ADDR_NODE) ? -LB_DROP_UNKNOWN_PORT : 0;
}

/* 1 with match filled, 0 if there is no frontend, or a negative reason. */
static __always_inline int lb_socket_match(struct bpf_sock_addr *ctx, struct lb_frontend_key *key,
					   struct lb_match *match)
{
	if (!lb_addr_is_own_host(&key->addr) && lb_frontend_lookup(key, match))
		return 1;
	return lb_socket_node_port(ctx, key, match);
}

/*
 * Frontends that need the client's address, or whose connections are retried, are left to tc if it
 * covers the pod. Without that, a client has no limits.
 */
static __always_inline int lb_socket_check_client(struct bpf_sock_addr *ctx,
						  const struct lb_desc *desc,
						  const struct lb_limit *limit)
{
	__u32 flags;

	if (!desc->affinity_timeout && !lb_limit_is_of_clients(limit) &&
	    !(desc->flags & (LB_DESC_SOURCE_RANGES | LB_DESC_MASQUERADE | LB_DESC_RETRY)))
		return LB_NEXT;
	flags = lb_netns_flags(ctx);
	return flags & LB_NETNS_COVERED ? LB_PASS : lb_source_range_of_socket(desc, flags);
}

/*
 * The client's port is not chosen yet when it connects, so the socket's cookie is hashed instead: a
 * socket that sends to a frontend again gets the same backend.
 */
static __always_inline int lb_socket_choose(struct bpf_sock_addr *ctx, const struct lb_match *match,
					    const struct lb_addr *peer, struct lb_choice *choice)
{
	const struct lb_desc *desc = match->desc;
	struct lb_limit *limit = lb_limit_of(desc->flags, desc->service);
	int verdict = lb_socket_check_client(ctx, desc, limit);
	struct lb_opening opening = {};
	struct lb_addr client = {};
	__u32 port = 0;

	if (verdict)
		return verdict;
	lb_opening_fill(&opening, desc, match->index, 1);
	opening.socket = ctx;
	if (desc->affinity_timeout || lb_scheduler_hashes(desc)) {
		lb_sock_client_get(ctx, peer, &client);
		port = lb_get_socket_cookie(ctx);
	}
	lb_opening_set_client(&opening, &client, port);
	return lb_affinity_select(&opening, choice);
}

/*
 * Whether connect() of a UDP socket succeeds although its datagrams will be refused. getaddrinfo()
 * connects one to each address, often to a port that no Service has, and treats an address as
 * unreachable if that fails (RFC 6724, rule 1). tc refuses the first datagram; but it does not see
 * those to the node's own addresses, or those of a pod without tc cover.
 */
static __always_inline int lb_socket_is_refused_later(struct bpf_sock_addr *ctx,
						      const struct lb_peer *peer,
						      const struct lb_match *match)
{
	if (ctx->protocol != IPPROTO_UDP)
		return 0;
	if (!match)
		return 1;
	return !lb_addr_is_own_host(&peer->addr) &&
	       !(lb_filter_flags_of(&peer->addr) & LB_ADDR_NODE) &&
	       lb_netns_flags(ctx) & LB_NETNS_HOST;
}

/* If the kernel cannot refuse a call with an errno, the packet is left to tc. */
static __always_inline int lb_socket_refuse(struct bpf_sock_addr *ctx, const struct lb_peer *peer,
					    const struct lb_match *match, int verdict,
					    int is_connect)
{
	if (!LB_HAS_SET_RETVAL || (is_connect && lb_socket_is_refused_later(ctx, peer, match)))
		return LB_PASS;
	if (match)
		lb_count_failure(match->index, verdict);
	lb_sock_record_failure(ctx, peer, match ? match->desc : NULL, verdict);
	return verdict;
}

/*
 * Whether a listener on this ClusterIP of the node gets the connection, or tc decides, because only
 * tc can look into the node's namespace.
 */
static __always_inline int lb_socket_is_left_to_listener(struct bpf_sock_addr *ctx,
							 const struct lb_peer *peer)
{
	struct lb_tuple packet = { .daddr = peer->addr,
				   .dport = peer->port,
				   .proto = ctx->protocol };
	__u32 flags;

	if (!lb_is_cluster_ip_of_node(&peer->addr))
		return 0;
	flags = lb_netns_flags(ctx);
	return flags & LB_NETNS_COVERED || (flags & LB_NETNS_HOST && lb_has_listener(ctx, &packet));
}

/*
 * LB_PASS: not a frontend, or not for this hook. What drops without an answer is left to tc, which
 * sends nothing back; a refusal is answered here.
 */
static __always_inline int lb_socket_select(struct bpf_sock_addr *ctx, const struct lb_peer *peer,
					    struct lb_match *match, struct lb_choice *choice,
					    int is_connect)
{
	struct lb_frontend_key key = { .addr = peer->addr,
				       .port = peer->port,
				       .proto = ctx->protocol };
	int verdict = lb_socket_match(ctx, &key, match);
	struct lb_desc *desc = match->desc;

	if (!verdict || !lb_socket_is_translated_here(ctx))
		return LB_PASS;
	if (lb_socket_is_left_to_listener(ctx, peer))
		return LB_PASS;
	if (verdict < 0)
		return lb_socket_refuse(ctx, peer, NULL, verdict, is_connect);
	/* Check again: the compiler may keep `verdict` where older verifiers lose track of it. */
	asm volatile("" : "+r"(desc));
	if (!desc)
		return LB_PASS;
	match->desc = desc;
	if (is_connect && lb_is_closed_to_agent(desc) && lb_is_of_agent(ctx->sk))
		return LB_PASS;
	verdict = lb_socket_choose(ctx, match, &peer->addr, choice);
	if (verdict == LB_PASS || verdict == -LB_DROP_NO_LOCAL_ENDPOINT)
		return LB_PASS;
	if (verdict)
		return lb_socket_refuse(ctx, peer, match, verdict, is_connect);
	lb_count_connection(match->index, choice->index);
	lb_open_begin(match->desc->flags, choice->index);
	return verdict;
}

static __always_inline void lb_peer_set_backend(struct lb_peer *peer,
						const struct lb_choice *choice)
{
	peer->addr = choice->backend->addr;
	peer->port = choice->backend->port;
}

static __always_inline int lb_socket_connect(struct bpf_sock_addr *ctx, struct lb_peer *peer)
{
	struct lb_choice choice = {};
	struct lb_match match = {};
	struct lb_peer frontend;
	int verdict;

	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
		return LB_PASS;
	if (!lb_socket_may_be_service(&peer->addr))
		return LB_PASS;
	peer->port = ctx->user_port;
	frontend = *peer;
	verdict = lb_socket_select(ctx, peer, &match, &choice, 1);
	if (verdict)
		return verdict;
	lb_peer_set_backend(peer, &choice);
	lb_peer_filter_add(peer->addr.word[3], peer->port);
	if (ctx->protocol == IPPROTO_TCP)
		lb_sock_nat_add_tcp(ctx, peer, &frontend, &match, &choice);
	else
		lb_sock_nat_add_udp(ctx, LB_DIR_REPLY, peer, &frontend, &match, &choice);
	return LB_REDIRECT;
}

static __always_inline int lb_socket_send(struct bpf_sock_addr *ctx, struct lb_peer *peer)
{
	struct lb_choice choice = {};
	struct lb_match match = {};
	struct lb_peer nobody = {};
	struct lb_peer frontend;
	int verdict = LB_PASS;

	if (ctx->protocol != IPPROTO_UDP)
		return LB_PASS;
	peer->port = ctx->user_port;
	frontend = *peer;
	if (lb_socket_may_be_service(&peer->addr)) {
		if (lb_sock_nat_recall(ctx, peer))
			return LB_REDIRECT;
		verdict = lb_socket_select(ctx, peer, &match, &choice, 0);
	}
	if (verdict == LB_PASS)
		lb_sock_nat_send_directly(ctx, peer);
	if (verdict)
		return verdict;
	lb_peer_set_backend(peer, &choice);
	lb_peer_filter_add(peer->addr.word[3], peer->port);
	lb_sock_nat_add_udp(ctx, LB_DIR_ORIGINAL, &frontend, peer, &match, &choice);
	lb_sock_nat_add_udp(ctx, LB_DIR_REPLY, peer, &frontend, &match, &choice);
	lb_sock_nat_add_udp(ctx, LB_DIR_NONE, &nobody, &frontend, &match, &choice);
	return LB_REDIRECT;
}

/* 1 lets the call continue; 0 fails it with the errno set here. */
static __always_inline int lb_socket_exit(int verdict)
{
	if (verdict >= 0)
		return 1;
	lb_count_drop_at(LB_DROP_AT_SOCKET, -verdict);
#if LB_HAS_SET_RETVAL
	bpf_set_retval(-ECONNREFUSED);
	return 0;
#else
	return 1;
#endif
}

#endif
