/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The traffic of a TCP socket, as counted by the kernel, and how it gets into the counters.
 * bytes_acked includes our SYN and FIN, bytes_received the other side's FIN; the connection's state
 * says whether they were sent.
 */
#ifndef LB_SOCK_TRAFFIC_H
#define LB_SOCK_TRAFFIC_H

#include "counters.h"
#include "types.h"

struct lb_sock_traffic {
	struct lb_traffic original;
	struct lb_traffic reply;
	__u32 retransmits;
};

/* The kernel's counters have 32 bits, which a fast connection exceeds within hours. */
static __always_inline __u64 lb_extend_counter(__u64 before, __u32 now)
{
	return before + (__u32)(now - (__u32)before);
}

/*
 * A FIN that overtakes missing data is in the connection's state before bytes_received includes it.
 */
static __always_inline void lb_sock_traffic_read(struct bpf_sock_ops *ctx,
						 const struct lb_connection *connection,
						 struct lb_sock_traffic *now)
{
	__u8 state = connection->state;
	__u64 received = ctx->bytes_received - !!(state & LB_CONN_PEER_FIN);

	now->original.packets = lb_extend_counter(connection->original.packets, ctx->segs_out);
	now->original.bytes =
		ctx->bytes_acked - !!(state & LB_CONN_ESTABLISHED) - !!(state & LB_CONN_FIN_ACKED);
	now->reply.packets = lb_extend_counter(connection->reply.packets, ctx->segs_in);
	now->reply.bytes = connection->reply.bytes;
	if ((__s64)(received - connection->reply.bytes) >= 0)
		now->reply.bytes = received;
	now->retransmits = ctx->total_retrans;
}

static __always_inline void lb_counts_add(struct lb_counts *counts,
					  const struct lb_connection *connection,
					  const struct lb_sock_traffic *now)
{
	if (!counts)
		return;
	__sync_fetch_and_add(&counts->original.packets,
			     now->original.packets - connection->original.packets);
	__sync_fetch_and_add(&counts->original.bytes,
			     now->original.bytes - connection->original.bytes);
	__sync_fetch_and_add(&counts->reply.packets,
			     now->reply.packets - connection->reply.packets);
	__sync_fetch_and_add(&counts->reply.bytes, now->reply.bytes - connection->reply.bytes);
	if (now->retransmits != connection->retransmits)
		__sync_fetch_and_add(&counts->retransmits,
				     now->retransmits - connection->retransmits);
}

/* Adds the increase since the last time. The socket is locked, so no other CPU does the same. */
static __always_inline void lb_connection_flush(struct bpf_sock_ops *ctx,
						struct lb_connection *connection,
						struct lb_sock_traffic *now)
{
	lb_sock_traffic_read(ctx, connection, now);
	lb_counts_add(lb_counts_of_frontend(connection->frontend, connection->service), connection,
		      now);
	lb_counts_add(lb_counts_of_backend(connection->backend, connection->serial), connection,
		      now);
	connection->original = now->original;
	connection->reply = now->reply;
	connection->retransmits = now->retransmits;
}

#endif
