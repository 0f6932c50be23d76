/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How far a TCP connection has come, as TCP counts it. bytes_acked has our SYN and FIN in it,
 * bytes_received the other's FIN: the states say when.
 */
#ifndef LB_SOCK_TRAFFIC_H
#define LB_SOCK_TRAFFIC_H

#include "types.h"

struct lb_sock_traffic {
	struct lb_traffic original;
	struct lb_traffic reply;
	__u32 retransmits;
};

/* TCP counts in 32 bits what a fast connection passes within hours. */
static __always_inline __u64 lb_extend_counter(__u64 before, __u32 now)
{
	return before + (__u32)(now - (__u32)before);
}

/* A FIN that came before data that is missing is not in what TCP has received. */
static __always_inline __u64 lb_at_least(__u64 before, __u64 now)
{
	return (__s64)(now - before) < 0 ? before : now;
}

static __always_inline void lb_sock_traffic_read(struct bpf_sock_ops *ctx,
						 const struct lb_connection *connection,
						 struct lb_sock_traffic *now)
{
	__u8 state = connection->state;

	now->original.packets = lb_extend_counter(connection->original.packets, ctx->segs_out);
	now->original.bytes =
		ctx->bytes_acked - !!(state & LB_CONN_ESTABLISHED) - !!(state & LB_CONN_FIN_ACKED);
	now->reply.packets = lb_extend_counter(connection->reply.packets, ctx->segs_in);
	now->reply.bytes = lb_at_least(connection->reply.bytes,
				       ctx->bytes_received - !!(state & LB_CONN_PEER_FIN));
	now->retransmits = ctx->total_retrans;
}

#endif
