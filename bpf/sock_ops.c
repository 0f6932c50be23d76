/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The entry point of sock_ops: the kernel calls it for the TCP connections of socket LB. It always
 * returns 1, so that other programs answer what the kernel asks.
 */
#include "sock_connection.h"

#define LB_TCP_FLAG_FIN 0x01

/*
 * One in this many RTT callbacks, chosen at random, flushes the counters: each costs a lookup.
 */
#define LB_FLUSH_CHANCE 8

/* Only in states in which LB_CONN_FIN_ACKED and LB_CONN_PEER_FIN cannot lag behind the kernel. */
static __always_inline void lb_sock_ops_flush(struct bpf_sock_ops *ctx)
{
	struct lb_connection *connection;
	struct lb_sock_traffic progress;
	__u64 now;

	if (bpf_get_prandom_u32() % LB_FLUSH_CHANCE)
		return;
	if (ctx->state != BPF_TCP_ESTABLISHED && ctx->state != BPF_TCP_CLOSE_WAIT)
		return;
	now = lb_now();
	connection = lb_connection_of(lb_get_socket_cookie(ctx));
	if (!connection || !connection->started)
		return;
	if ((__s64)(now - connection->flushed) < (__s64)LB_FLUSH_INTERVAL)
		return;
	connection->flushed = now;
	lb_connection_note_fins(ctx, connection);
	lb_connection_note_latency(ctx, connection);
	lb_connection_flush(ctx, connection, &progress);
}

static __always_inline void lb_sock_ops_mark(struct bpf_sock_ops *ctx, __u8 state)
{
	struct lb_connection *connection = lb_connection_of(lb_get_socket_cookie(ctx));

	if (connection)
		connection->state |= state;
}

/* The kernel gives the connection up (args[2]), or sends again. */
static __always_inline void lb_sock_ops_retransmit(struct bpf_sock_ops *ctx)
{
	struct lb_connection *connection;

	if (ctx->args[2]) {
		lb_sock_ops_mark(ctx, LB_CONN_TIMED_OUT);
		return;
	}
	if (ctx->state != BPF_TCP_SYN_SENT)
		return;
	connection = lb_connection_of(lb_get_socket_cookie(ctx));
	if (connection && connection->started)
		lb_connection_repeat_syn(ctx, connection);
}

int lb_sock_ops(struct bpf_sock_ops *ctx)
{
	__u32 op = ctx->op;

	if (op == BPF_SOCK_OPS_RTT_CB)
		lb_sock_ops_flush(ctx);
	else if (op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		lb_connection_open(ctx);
	else if (op == BPF_SOCK_OPS_STATE_CB)
		lb_connection_change_state(ctx, ctx->args[1]);
	else if (op == BPF_SOCK_OPS_RTO_CB)
		lb_sock_ops_retransmit(ctx);
	else if (op == BPF_SOCK_OPS_PARSE_HDR_OPT_CB && ctx->skb_tcp_flags & LB_TCP_FLAG_FIN)
		lb_sock_ops_mark(ctx, LB_CONN_PEER_FIN);
	return 1;
}
