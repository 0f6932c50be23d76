/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * UDP sockets that were translated: their entries in lb_sockets, by which a socket keeps its backend
 * and sees answers come from where it sent to.
 */
#ifndef LB_SOCK_UDP_H
#define LB_SOCK_UDP_H

#include "addr.h"
#include "backend.h"
#include "filter.h"
#include "flow_record.h"
#include "frontend.h"
#include "maps.h"
#include "open_connections.h"
#include "sock_client.h"
#include "sock_peer.h"

/*
 * Records that a UDP socket starts or stops using a backend. key, socket: in direction reply.
 * Neither the client's port nor the traffic is known here.
 */
static __always_inline void lb_sock_record_udp(void *ctx, int event,
					       const struct lb_socket_key *key,
					       const struct lb_socket *socket)
{
	struct lb_flow_record *record;

	if (!(socket->flow_flags & LB_CT_SAMPLED))
		return;
	record = lb_flow_record_reserve(event, key->proto, 0);
	if (!record)
		return;
	record->end = event == LB_FLOW_END ? LB_END_CLOSED : 0;
	lb_sock_client_get(ctx, &key->peer, &record->client);
	record->frontend = socket->peer;
	record->frontend_port = socket->port;
	record->backend_addr = key->peer;
	record->backend_port = key->port;
	lb_flow_record_set_backend(record, socket->service, socket->backend, socket->serial,
				   socket->desc_flags);
	lb_flow_record_submit(record);
}

/*
 * For UDP. Direction reply serves recvmsg and getpeername, direction original sendmsg; without a
 * direction it is the last frontend of an unconnected socket.
 */
static __always_inline void lb_sock_nat_add_udp(struct bpf_sock_addr *ctx, int direction,
						const struct lb_peer *from,
						const struct lb_peer *to,
						const struct lb_match *match,
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
		.serial = choice->backend->serial,
		.service = choice->backend->service,
		.frontend = match->index,
		.desc_flags = match->desc->flags,
	};

	if (direction == LB_DIR_REPLY && lb_flow_is_sampled()) {
		value.flow_flags = LB_CT_SAMPLED;
		lb_sock_record_udp(ctx, LB_FLOW_START, &key, &value);
	}
	lb_sockets.update(&key, &value);
}

/*
 * What recvmsg shows for a peer: the last destination by which the socket reached it. A backend may
 * be behind several frontends, and the socket may also send to it directly. key: the backend's, in
 * direction reply.
 */
static __always_inline void lb_sock_nat_show(struct lb_socket_key *key, const struct lb_addr *addr,
					     __be16 port)
{
	struct lb_socket *shown = lb_sockets.lookup(key);
	struct lb_socket value;

	if (!shown || (shown->port == port && lb_addr_is_equal(&shown->peer, addr)))
		return;
	value = *shown;
	value.peer = *addr;
	value.port = port;
	lb_sockets.update(key, &value);
}

/*
 * A datagram to an address that is not a Service's. Of a connected socket that is its peer, as it was
 * translated: the kernel calls the hook of IPv4 for each datagram of an IPv6 socket.
 */
static __always_inline void lb_sock_nat_send_directly(struct bpf_sock_addr *ctx,
						      const struct lb_peer *peer)
{
	struct lb_socket_key key = {
		.peer = peer->addr,
		.port = peer->port,
		.proto = ctx->protocol,
		.direction = LB_DIR_REPLY,
	};
	struct bpf_sock *sk = ctx->sk;

	if (!lb_peer_filter_has(peer->addr.word[3], peer->port) ||
	    (sk && sk->state == BPF_TCP_ESTABLISHED))
		return;
	key.cookie = lb_get_socket_cookie(ctx);
	lb_sock_nat_show(&key, &peer->addr, peer->port);
}

/* The backend of an earlier datagram from this socket to the same frontend, if it still serves. */
static __always_inline int lb_sock_nat_recall(struct bpf_sock_addr *ctx, struct lb_peer *peer)
{
	struct lb_socket_key key = {
		.cookie = lb_get_socket_cookie(ctx),
		.peer = peer->addr,
		.port = peer->port,
		.proto = ctx->protocol,
		.direction = LB_DIR_ORIGINAL,
	};
	struct lb_peer frontend = *peer;
	struct lb_socket *socket = lb_sockets.lookup(&key);

	if (!socket || !lb_backend_serving(socket->backend, socket->serial))
		return 0;
	peer->addr = socket->peer;
	peer->port = socket->port;
	key.peer = peer->addr;
	key.port = peer->port;
	key.direction = LB_DIR_REPLY;
	lb_sock_nat_show(&key, &frontend.addr, frontend.port);
	return 1;
}

static __always_inline void lb_sock_nat_delete_udp(struct bpf_sock *ctx, struct lb_socket_key *key)
{
	struct lb_socket *socket;

	key->cookie = lb_get_socket_cookie(ctx);
	socket = lb_sockets.lookup(key);
	if (!socket)
		return;
	lb_open_end(socket->desc_flags, socket->backend, socket->serial);
	lb_sock_record_udp(ctx, LB_FLOW_END, key, socket);
	lb_sockets.delete(key);
}

/* The entries of the frontend to which an unconnected socket sent last. */
static __always_inline void lb_sock_nat_delete_last(struct bpf_sock *ctx)
{
	struct lb_socket_key key = { .cookie = lb_get_socket_cookie(ctx),
				     .proto = IPPROTO_UDP,
				     .direction = LB_DIR_NONE };
	struct lb_socket *socket = lb_sockets.lookup(&key);
	struct lb_peer frontend;

	if (!socket)
		return;
	frontend.addr = socket->peer;
	frontend.port = socket->port;
	lb_sockets.delete(&key);
	key.peer = frontend.addr;
	key.port = frontend.port;
	key.direction = LB_DIR_ORIGINAL;
	socket = lb_sockets.lookup(&key);
	if (!socket)
		return;
	key.peer = socket->peer;
	key.port = socket->port;
	key.direction = LB_DIR_REPLY;
	lb_sock_nat_delete_udp(ctx, &key);
	key.peer = frontend.addr;
	key.port = frontend.port;
	key.direction = LB_DIR_ORIGINAL;
	lb_sockets.delete(&key);
}

#endif
