/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * TCP connections translated at the socket, as the kernel reports them to sock_ops: from the SYN to
 * the last state, and how they ended.
 */
#ifndef LB_SOCK_CONNECTION_H
#define LB_SOCK_CONNECTION_H

#include "addr.h"
#include "clock.h"
#include "connection_place.h"
#include "counters.h"
#include "ejection.h"
#include "filter.h"
#include "flow_record.h"
#include "histogram.h"
#include "latency.h"
#include "maps.h"
#include "sock_nat.h"
#include "sock_traffic.h"

#define LB_FLUSH_INTERVAL LB_SECOND

static __always_inline __be16 lb_connection_remote_port(struct bpf_sock_ops *ctx)
{
	return bpf_htons(bpf_ntohl(ctx->remote_port));
}

static __always_inline void lb_connection_remote_addr(struct bpf_sock_ops *ctx,
						      struct lb_addr *addr)
{
	__be32 ipv4 = *(volatile __be32 *)&ctx->remote_ip4;

	addr->word[0] = ctx->remote_ip6[0];
	addr->word[1] = ctx->remote_ip6[1];
	addr->word[2] = ctx->remote_ip6[2];
	addr->word[3] = ctx->remote_ip6[3];
	if (ctx->family == LB_AF_INET)
		lb_addr_from_ipv4(addr, ipv4);
}

static __always_inline void lb_connection_local_addr(struct bpf_sock_ops *ctx, struct lb_addr *addr)
{
	__be32 ipv4 = *(volatile __be32 *)&ctx->local_ip4;

	addr->word[0] = ctx->local_ip6[0];
	addr->word[1] = ctx->local_ip6[1];
	addr->word[2] = ctx->local_ip6[2];
	addr->word[3] = ctx->local_ip6[3];
	if (ctx->family == LB_AF_INET)
		lb_addr_from_ipv4(addr, ipv4);
}

/* The connection that connect() stored, if this socket connects to its backend. */
static __always_inline struct lb_connection *lb_connection_lookup(struct bpf_sock_ops *ctx)
{
	__be16 port = lb_connection_remote_port(ctx);
	struct lb_connection *connection;
	struct lb_addr peer;

	lb_connection_remote_addr(ctx, &peer);
	if (!lb_peer_filter_has(peer.word[3], port))
		return NULL;
	connection = lb_connection_of(lb_get_socket_cookie(ctx));
	return connection && lb_connection_is_to(connection, &peer, port) ? connection : NULL;
}

/* flags: further callbacks. */
static __always_inline void lb_connection_enable_callbacks(struct bpf_sock_ops *ctx, int flags)
{
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | flags);
}

/* The SYN is about to leave: enables the callbacks, if the socket was translated. */
static __always_inline void lb_connection_open(struct bpf_sock_ops *ctx)
{
	struct lb_connection *connection = lb_connection_lookup(ctx);

	if (!connection)
		return;
	connection->started = lb_now();
	connection->flushed = connection->started;
	connection->state = lb_flow_is_sampled() ? LB_CONN_SAMPLED : 0;
	lb_connection_enable_callbacks(ctx, BPF_SOCK_OPS_STATE_CB_FLAG | BPF_SOCK_OPS_RTO_CB_FLAG);
}

static __always_inline void lb_connection_record(struct bpf_sock_ops *ctx, int event, int end,
						 const struct lb_connection *connection,
						 const struct lb_sock_traffic *now)
{
	struct lb_flow_record *record;

	if (!(connection->state & LB_CONN_SAMPLED))
		return;
	record = lb_flow_record_reserve(event, IPPROTO_TCP, 0);
	if (!record)
		return;
	record->end = end;
	record->started = connection->started;
	lb_connection_local_addr(ctx, &record->client);
	record->client_port = bpf_htons(ctx->local_port);
	record->frontend = connection->addr;
	record->frontend_port = connection->port;
	lb_connection_remote_addr(ctx, &record->backend_addr);
	record->backend_port = lb_connection_remote_port(ctx);
	lb_flow_record_set_backend(record, connection->service, connection->backend,
				   connection->serial, connection->desc_flags);
	record->original = now->original;
	record->reply = now->reply;
	record->rtt = ctx->srtt_us >> 3;
	record->retransmits = now->retransmits;
	lb_flow_record_submit(record);
}

/* The client of a connection, for ejection. */
static __always_inline void lb_connection_client(struct bpf_sock_ops *ctx,
						 const struct lb_connection *connection,
						 struct lb_client_key *client)
{
	struct lb_addr addr;
	int is_host;

	lb_connection_local_addr(ctx, &addr);
	is_host = lb_filter_flags_of(&addr) & LB_ADDR_NODE;
	lb_client_fill(client, connection->service, &addr,
		       is_host ? LB_HOOK_HOST_EGRESS : LB_HOOK_POD_INGRESS);
}

static __always_inline void lb_connection_note_failure(struct bpf_sock_ops *ctx,
						       const struct lb_connection *connection)
{
	struct lb_client_key client;

	lb_connection_client(ctx, connection, &client);
	lb_ejection_note_failure(connection->backend, connection->serial, &client);
}

/* If anything arrived in answer to the SYN, the backend refused the connection. */
static __always_inline void lb_connection_fail(struct bpf_sock_ops *ctx,
					       struct lb_connection *connection)
{
	int end = ctx->segs_in ? LB_END_BACKEND_REFUSED : LB_END_NO_ANSWER;
	struct lb_sock_traffic now;

	lb_connection_flush(ctx, connection, &now);
	lb_count_failed(connection->frontend, connection->service, connection->backend,
			connection->serial, 0);
	if (!(connection->state & LB_CONN_UNANSWERED))
		lb_connection_note_failure(ctx, connection);
	lb_connection_record(ctx, LB_FLOW_END, end, connection, &now);
}

/* The SYN is repeated after a second without an answer. */
static __always_inline void lb_connection_repeat_syn(struct bpf_sock_ops *ctx,
						     struct lb_connection *connection)
{
	if (connection->state & LB_CONN_UNANSWERED)
		return;
	connection->state |= LB_CONN_UNANSWERED;
	lb_connection_note_failure(ctx, connection);
}

/*
 * Derives both FINs from the state of the socket, so that no callback has to look up the connection
 * to store them. In CLOSING and LAST_ACK our FIN was acknowledged if nothing is unacknowledged now.
 * The side that closes first does not see the other's FIN: its TIME_WAIT socket does.
 */
static __always_inline void lb_connection_note_fins(struct bpf_sock_ops *ctx,
						    struct lb_connection *connection)
{
	__u32 tcp = ctx->state;

	if (tcp == BPF_TCP_CLOSE_WAIT || tcp == BPF_TCP_CLOSING || tcp == BPF_TCP_LAST_ACK)
		connection->state |= LB_CONN_PEER_FIN;
	if (tcp == BPF_TCP_FIN_WAIT2 ||
	    ((tcp == BPF_TCP_CLOSING || tcp == BPF_TCP_LAST_ACK) && ctx->snd_una == ctx->snd_nxt))
		connection->state |= LB_CONN_FIN_ACKED;
}

static __always_inline int lb_connection_end_reason(const struct lb_connection *connection)
{
	if (connection->state & LB_CONN_FIN_ACKED)
		return LB_END_CLOSED;
	return connection->state & LB_CONN_TIMED_OUT ? LB_END_TIMED_OUT : LB_END_RESET;
}

static __always_inline void lb_connection_end(struct bpf_sock_ops *ctx,
					      struct lb_connection *connection)
{
	struct lb_sock_traffic now;
	int end;

	lb_connection_note_fins(ctx, connection);
	end = lb_connection_end_reason(connection);
	lb_connection_flush(ctx, connection, &now);
	lb_histograms_add(LB_PATH_SOCKET, lb_now() - connection->started,
			  now.original.bytes + now.reply.bytes);
	lb_histogram_add(LB_PATH_SOCKET, LB_HISTOGRAM_RTT, ctx->srtt_us >> 3);
	lb_connection_record(ctx, LB_FLOW_END, end, connection, &now);
}

/* Without a smoothed round trip time, as after a repeated SYN, the handshake's. */
static __always_inline void lb_connection_note_latency(struct bpf_sock_ops *ctx,
						       const struct lb_connection *connection)
{
	__u64 took = (ctx->srtt_us >> 3) * 1000ULL;

	if (!took)
		took = lb_now() - connection->started;
	lb_latency_note(connection->desc_flags, connection->backend, connection->serial, took);
}

static __always_inline void lb_connection_establish(struct bpf_sock_ops *ctx,
						    struct lb_connection *connection)
{
	struct lb_sock_traffic now = {};
	struct lb_client_key client;

	connection->state |= LB_CONN_ESTABLISHED;
	lb_connection_note_latency(ctx, connection);
	if (lb_backend_is_watched(connection->backend, connection->serial)) {
		lb_ejection_note_success(connection->backend);
		lb_connection_client(ctx, connection, &client);
		lb_ejection_note_client(connection->backend, connection->serial, &client);
	}
	lb_connection_enable_callbacks(ctx, BPF_SOCK_OPS_RTT_CB_FLAG);
	lb_connection_record(ctx, LB_FLOW_START, 0, connection, &now);
}

/*
 * The callbacks stay enabled if a socket connects again. An entry without `started` is from a
 * connect() whose SYN never left: ignore the state changes of that socket.
 */
static __always_inline void lb_connection_change_state(struct bpf_sock_ops *ctx, int to)
{
	struct lb_connection *connection;
	__u64 cookie;

	/* After our FIN, look at each header: no other callback reports the other side's FIN. */
	if (to == BPF_TCP_FIN_WAIT1 && ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_RTT_CB_FLAG)
		lb_connection_enable_callbacks(ctx, BPF_SOCK_OPS_PARSE_ALL_HDR_OPT_CB_FLAG);
	if (to != BPF_TCP_ESTABLISHED && to != BPF_TCP_CLOSE)
		return;
	cookie = lb_get_socket_cookie(ctx);
	connection = lb_connection_of(cookie);
	if (!connection)
		return;
	if (to == BPF_TCP_ESTABLISHED && connection->started)
		lb_connection_establish(ctx, connection);
	if (to != BPF_TCP_CLOSE)
		return;
	if (connection->started && connection->state & LB_CONN_ESTABLISHED)
		lb_connection_end(ctx, connection);
	else if (connection->started)
		lb_connection_fail(ctx, connection);
	lb_sock_nat_forget_tcp(cookie, connection);
}

#endif
