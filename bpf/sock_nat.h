/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Socket NAT: the entries of translated sockets. With them recvmsg and getpeername show the
 * frontend, and a UDP socket keeps its backend.
 */
#ifndef LB_SOCK_NAT_H
#define LB_SOCK_NAT_H

#include "addr.h"
#include "backend.h"
#include "clock.h"
#include "connection_place.h"
#include "filter.h"
#include "flow_record.h"
#include "frontend.h"
#include "maps.h"
#include "open_connections.h"
#include "sock_client.h"
#include "sock_peer.h"
#include "sock_udp.h"
#include "verdict.h"

/* Records a refused or dropped connect() or sendmsg(). desc: NULL if there is no frontend. */
static __always_inline void lb_sock_record_failure(struct bpf_sock_addr *ctx,
						   const struct lb_peer *peer,
						   const struct lb_desc *desc, int verdict)
{
	struct lb_flow_record *record = lb_flow_record_failure(ctx->protocol, desc, 0, -verdict);

	if (!record)
		return;
	lb_sock_client_get(ctx, &peer->addr, &record->client);
	record->frontend = peer->addr;
	record->frontend_port = peer->port;
	lb_flow_record_submit(record);
}

/*
 * A TCP socket has one peer. lb_sock_ops follows the connection (sock_connection.h); if it is not
 * attached, the entry lasts from connect() to close().
 */
static __always_inline void lb_sock_nat_add_tcp(struct bpf_sock_addr *ctx,
						const struct lb_peer *backend,
						const struct lb_peer *frontend,
						const struct lb_match *match,
						const struct lb_choice *choice)
{
	struct lb_connection value = {
		.started = LB_HAS_SOCK_OPS ? 0 : lb_now(),
		.addr = frontend->addr,
		.port = frontend->port,
		.frontend = match->index,
		.service = choice->backend->service,
		.backend = choice->index,
		.serial = choice->backend->serial,
		.desc_flags = match->desc->flags,
		.backend_addr = backend->addr,
		.backend_port = backend->port,
	};

	lb_connection_store(lb_get_socket_cookie(ctx), &value);
}

static __always_inline int lb_connection_is_to(const struct lb_connection *connection,
					       const struct lb_addr *peer, __be16 port)
{
	return connection->backend_port == port &&
	       lb_addr_is_equal(&connection->backend_addr, peer);
}

static __always_inline int lb_sock_nat_reverse_tcp(__u64 cookie, struct lb_peer *peer)
{
	struct lb_connection *connection = lb_connection_of(cookie);

	if (!connection || !lb_connection_is_to(connection, &peer->addr, peer->port))
		return LB_PASS;
	peer->addr = connection->addr;
	peer->port = connection->port;
	return LB_REDIRECT;
}

/* UDP. LB_REDIRECT: this socket was translated to the peer, which becomes the frontend. */
static __always_inline int lb_sock_nat_reverse(struct bpf_sock_addr *ctx, struct lb_peer *peer)
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
		return LB_PASS;
	peer->addr = socket->peer;
	peer->port = socket->port;
	return LB_REDIRECT;
}

/* The same, including TCP. */
static __always_inline int lb_sock_nat_reverse_any(struct bpf_sock_addr *ctx, struct lb_peer *peer)
{
	peer->port = ctx->user_port;
	if (ctx->protocol == IPPROTO_TCP)
		return lb_sock_nat_reverse_tcp(lb_get_socket_cookie(ctx), peer);
	return lb_sock_nat_reverse(ctx, peer);
}

static __always_inline void lb_sock_nat_forget_tcp(__u64 cookie,
						   const struct lb_connection *connection)
{
	lb_open_end(connection->desc_flags, connection->backend, connection->serial);
	lb_connection_forget(cookie);
}

/* The entry of a started connection stays until its last state change, which lb_sock_ops sees. */
static __always_inline void lb_sock_nat_delete_tcp(__u64 cookie)
{
	struct lb_connection *connection = lb_connection_of(cookie);

	if (connection && (!LB_HAS_SOCK_OPS || !connection->started))
		lb_sock_nat_forget_tcp(cookie, connection);
}

/* For a connection that lb_sock_ops did not see, because it was attached only later. */
static __always_inline void lb_sock_nat_delete_untold(__u64 cookie)
{
	struct lb_conn_place *place = lb_conn_place_of(cookie);

	if (place && place->cookie == cookie && !place->connection.started)
		lb_sock_nat_forget_tcp(cookie, &place->connection);
}

/* TCP socket states in which a connect() may have failed before its SYN left. */
static __always_inline int lb_sock_has_no_syn_sent(const struct bpf_sock *ctx)
{
	__u32 states = 1 << BPF_TCP_CLOSE | 1 << BPF_TCP_SYN_SENT | 1 << BPF_TCP_LISTEN;

	return states >> ctx->state & 1;
}

/*
 * Deletes the entry of a connected socket, or the last ones of an unconnected socket; the agent
 * deletes the others of those that sent to several frontends. A TCP socket whose connect() failed,
 * without a route for example, has no peer.
 */
static __always_inline void lb_sock_nat_release(struct bpf_sock *ctx)
{
	__be32 ipv4 = *(volatile __be32 *)&ctx->dst_ip4;
	struct lb_socket_key key = {
		.port = ctx->dst_port,
		.proto = ctx->protocol,
		.direction = LB_DIR_REPLY,
	};
	int may_have_entry;

	if (key.proto == IPPROTO_TCP && LB_HAS_SOCK_OPS && !lb_sock_has_no_syn_sent(ctx)) {
		lb_sock_nat_delete_untold(lb_get_socket_cookie(ctx));
		return;
	}
	/* For an IPv6 socket that uses IPv4 these fields contain the mapped address too. */
	key.peer.word[0] = ctx->dst_ip6[0];
	key.peer.word[1] = ctx->dst_ip6[1];
	key.peer.word[2] = ctx->dst_ip6[2];
	key.peer.word[3] = ctx->dst_ip6[3];
	if (ctx->family == LB_AF_INET)
		lb_addr_from_ipv4(&key.peer, ipv4);
	if (key.proto == IPPROTO_UDP && !key.port) {
		lb_sock_nat_delete_last(ctx);
		return;
	}
	may_have_entry = lb_peer_filter_has(key.peer.word[3], key.port);
	if (key.proto == IPPROTO_TCP && (may_have_entry || !key.port))
		lb_sock_nat_delete_tcp(lb_get_socket_cookie(ctx));
	else if (key.proto == IPPROTO_UDP && may_have_entry)
		lb_sock_nat_delete_udp(ctx, &key);
}

#endif
