/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The only places that count. Atomic although per CPU: cgroup hooks and sock_ops can be preempted
 * and interrupted by a hook on the same CPU.
 */
#ifndef LB_COUNTERS_H
#define LB_COUNTERS_H

#include "maps.h"
#include "packet.h"
#include "types.h"

/* ifindex: of a host device, or an enum lb_drop_place. */
static __always_inline void lb_count_drop_at(__u32 ifindex, int reason)
{
	struct lb_drop_key key = { .reason = reason, .ifindex = ifindex };
	__u64 *count = lb_count_drop.lookup(&key);
	__u64 one = 1;

	if (!count) {
		if (!lb_count_drop.insert(&key, &one))
			return;
		/* Another CPU was first. */
		count = lb_count_drop.lookup(&key);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline void lb_count_connection(int frontend, int backend)
{
	struct lb_counts *counts = lb_count_front.lookup(&frontend);

	if (counts)
		__sync_fetch_and_add(&counts->connections, 1);
	counts = lb_count_back.lookup(&backend);
	if (counts)
		__sync_fetch_and_add(&counts->connections, 1);
}

/* verdict: -LB_DROP_NO_ENDPOINT is refused, any other is dropped. */
static __always_inline void lb_count_failure(int frontend, int verdict)
{
	struct lb_counts *counts = lb_count_front.lookup(&frontend);

	if (!counts)
		return;
	if (verdict == -LB_DROP_NO_ENDPOINT)
		__sync_fetch_and_add(&counts->refused, 1);
	else
		__sync_fetch_and_add(&counts->dropped, 1);
}

/* The counters of the frontend at an index, while it is one of the Service port of a flow. */
static __always_inline struct lb_counts *lb_counts_of_frontend(int index, __u32 service)
{
	__u64 *word = lb_current.lookup(&index);
	struct lb_desc *desc;
	int i;

	if (!word)
		return NULL;
	i = *(volatile __u64 *)word;
	desc = lb_descs.lookup(&i);
	return desc && desc->service == service ? lb_count_front.lookup(&index) : NULL;
}

/* The counters of the backend at an index, while it is the one that a flow has. */
static __always_inline struct lb_counts *lb_counts_of_backend(int index, __u32 generation)
{
	struct lb_backend *backend = lb_backends.lookup(&index);

	return backend && backend->generation == generation ? lb_count_back.lookup(&index) : NULL;
}

/* The backend refused a flow, or did not answer. */
static __always_inline void lb_count_failed(int frontend, __u32 service, int backend,
					    __u32 generation)
{
	struct lb_counts *counts = lb_counts_of_frontend(frontend, service);

	if (counts)
		__sync_fetch_and_add(&counts->failed, 1);
	counts = lb_counts_of_backend(backend, generation);
	if (counts)
		__sync_fetch_and_add(&counts->failed, 1);
}

/*
 * At tc: plain additions. Nothing that counts the same comes in between, as softirqs are off; what
 * sock_ops adds meanwhile from a process is one instruction.
 */
static __always_inline void lb_traffic_add_packet(struct lb_counts *counts,
						  const struct lb_packet *pkt, int direction)
{
	struct lb_traffic *traffic;

	if (!counts)
		return;
	traffic = direction == LB_DIR_ORIGINAL ? &counts->original : &counts->reply;
	traffic->packets += pkt->segs;
	traffic->bytes += lb_payload(pkt);
}

/* A packet of a flow that is translated at tc. */
static __always_inline void lb_count_packet(const struct lb_packet *pkt,
					    const struct lb_conntrack *entry)
{
	lb_traffic_add_packet(lb_counts_of_frontend(entry->frontend, entry->service), pkt,
			      entry->direction);
	lb_traffic_add_packet(lb_counts_of_backend(entry->backend, entry->generation), pkt,
			      entry->direction);
}

/* The one that opens it. */
static __always_inline void lb_count_first_packet(const struct lb_packet *pkt, int frontend,
						  int backend)
{
	lb_traffic_add_packet(lb_count_front.lookup(&frontend), pkt, LB_DIR_ORIGINAL);
	lb_traffic_add_packet(lb_count_back.lookup(&backend), pkt, LB_DIR_ORIGINAL);
}

#endif
