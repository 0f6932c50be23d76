/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Counters: no other file counts. The counters are per CPU, but additions are atomic, because a
 * hook on the same CPU can preempt or interrupt cgroup hooks and sock_ops.
 */
#ifndef LB_COUNTERS_H
#define LB_COUNTERS_H

#include "maps.h"
#include "packet.h"
#include "types.h"
#include "verdict.h"

/* ifindex: a host device, or enum lb_drop_place. */
static __always_inline void lb_count_drop_at(__u32 ifindex, int reason)
{
	struct lb_drop_key key = { .reason = reason, .ifindex = ifindex };
	__u64 *count = lb_count_drop.lookup(&key);
	__u64 one = 1;

	if (!count) {
		if (!lb_count_drop.insert(&key, &one))
			return;
		/* Another CPU inserted it first. */
		count = lb_count_drop.lookup(&key);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
}

/* result: enum lb_xdp_result. */
static __always_inline void lb_count_xdp_result(int result)
{
	__u64 *count = lb_count_xdp.lookup(&result);

	if (count)
		*count += 1;
}

/* A new connection at a socket. */
static __always_inline void lb_count_connection(int frontend, int backend)
{
	struct lb_counts *counts = lb_count_front.lookup(&frontend);

	if (counts)
		__sync_fetch_and_add(&counts->connections, 1);
	counts = lb_count_back.lookup(&backend);
	if (counts)
		__sync_fetch_and_add(&counts->connections, 1);
}

/* A connection is refused or dropped. */
static __always_inline void lb_count_failure(int frontend, int verdict)
{
	struct lb_counts *counts = lb_count_front.lookup(&frontend);

	if (!counts)
		return;
	if (lb_is_refusal(-verdict))
		__sync_fetch_and_add(&counts->refused, 1);
	else
		__sync_fetch_and_add(&counts->dropped, 1);
}

/*
 * What a frontend does now, or NULL if its index no longer belongs to the flow's Service port. Here and
 * below the key has 8 bytes, of which 4 are used: the verifier keeps apart what was in a stack slot before
 * that is written in part, and explores what follows a third more often.
 */
static __always_inline struct lb_desc *lb_desc_of_frontend(int index, __u32 service)
{
	__u64 key = (__u32)index;
	__u64 *word = lb_current.lookup((int *)&key);
	struct lb_desc *desc;

	if (!word)
		return NULL;
	key = *(volatile __u64 *)word;
	desc = lb_descs.lookup((int *)&key);
	return desc && desc->service == service ? desc : NULL;
}

/* The counters of a frontend, or NULL as above. */
static __always_inline struct lb_counts *lb_counts_of_frontend(int index, __u32 service)
{
	__u64 key = (__u32)index;

	return lb_desc_of_frontend(index, service) ? lb_count_front.lookup((int *)&key) : NULL;
}

/* The counters of a backend, or NULL if its index no longer belongs to the flow's backend. */
static __always_inline struct lb_counts *lb_counts_of_backend(int index, __u32 serial)
{
	__u64 key = (__u32)index;
	struct lb_backend *backend = lb_backends.lookup((int *)&key);

	return backend && backend->serial == serial ? lb_count_back.lookup((int *)&key) : NULL;
}

/*
 * The backend refused a connection, or did not answer. retried: 1 if another one gets it, else 0. The
 * asm hides a constant 0: the compiler would make an atomic OR of it, which Linux 5.10 does not have.
 */
static __always_inline void lb_count_failed(int frontend, __u32 service, int backend, __u32 serial,
					    __u64 retried)
{
	struct lb_counts *counts = lb_counts_of_frontend(frontend, service);

	asm volatile("" : "+r"(retried));
	if (counts) {
		__sync_fetch_and_add(&counts->retried, retried);
		__sync_fetch_and_add(&counts->failed, 1 - retried);
	}
	counts = lb_counts_of_backend(backend, serial);
	if (counts)
		__sync_fetch_and_add(&counts->failed, 1);
}

/*
 * At tc a plain addition is enough: softirqs are off, so no other program that updates the same
 * counter can interrupt it, and an addition by sock_ops in process context is one instruction.
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

/* For a packet of a known flow. The sending node has already counted requests in a tunnel. */
static __always_inline void lb_count_packet(const struct lb_packet *pkt,
					    const struct lb_conntrack *entry)
{
	if (LB_HAS_DSR && entry->flags & LB_CT_TUNNELED && entry->direction == LB_DIR_ORIGINAL)
		return;
	lb_traffic_add_packet(lb_counts_of_frontend(entry->frontend, entry->service), pkt,
			      entry->direction);
	lb_traffic_add_packet(lb_counts_of_backend(entry->backend, entry->serial), pkt,
			      entry->direction);
}

static __always_inline void lb_count_opening(struct lb_counts *counts, const struct lb_packet *pkt)
{
	if (!counts)
		return;
	counts->connections += 1;
	lb_traffic_add_packet(counts, pkt, LB_DIR_ORIGINAL);
}

/* For a packet that opens a flow. */
static __always_inline void lb_count_first_packet(const struct lb_packet *pkt, int frontend,
						  int backend)
{
	lb_count_opening(lb_count_front.lookup(&frontend), pkt);
	lb_count_opening(lb_count_back.lookup(&backend), pkt);
}

#endif
