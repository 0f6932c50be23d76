/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Schedulers: which slot of a range a new flow gets. */
#ifndef LB_SCHEDULER_H
#define LB_SCHEDULER_H

#include "flow_hash.h"
#include "latency.h"
#include "maps.h"
#include "open_connections.h"

/* How a backend is chosen for a new flow: words/scheduler.py, in the same order. */
enum lb_scheduler {
	LB_SCHEDULER_RANDOM = 0,
	LB_SCHEDULER_ROUND_ROBIN = 1,
	LB_SCHEDULER_LEAST_CONNECTIONS = 2,
	LB_SCHEDULER_SOURCE_HASH = 3,
	LB_SCHEDULER_MAGLEV = 4,
	LB_SCHEDULER_LOWEST_LATENCY = 5,
};

/* A flow to be opened, with everything that the choice of its backend depends on. */
struct lb_opening {
	const struct lb_desc *desc;
	const struct lb_range *range; /* of desc, for this client */
	const struct lb_addr *client;
	int turn;     /* index in lb_turns */
	__u8 hook;    /* of a packet, 0 at a socket */
	void *socket; /* the context of its hook; NULL for a packet */
	__u32 hashed_slot;
	__u32 number;                 /* of an earlier choice, see struct lb_choice */
	const struct lb_retry *retry; /* NULL at a socket */
};

static __always_inline void lb_opening_fill(struct lb_opening *opening, const struct lb_desc *desc,
					    __u32 frontend, int is_local_source)
{
	opening->desc = desc;
	opening->range = is_local_source ? &desc->local : &desc->others;
	opening->turn = 2 * frontend + !is_local_source;
}

/*
 * Neither the load nor the store is atomic: flows opened on two CPUs at the same time may get the
 * same turn. The start is random, or all nodes would choose in lockstep.
 */
static __always_inline __u32 lb_turn_take(int index)
{
	__u32 *word = lb_turns.lookup(&index);
	__u32 turn = word ? *(volatile __u32 *)word : 0;

	if (!turn)
		turn = bpf_get_prandom_u32();
	if (word)
		*(volatile __u32 *)word = turn + 1;
	return turn;
}

/* Where a scheduler chooses: in the table, or without one among the backends themselves. */
static __always_inline __u32 lb_range_first(const struct lb_range *range)
{
	return range->table ? range->base + range->count : range->base;
}

static __always_inline __u32 lb_range_size(const struct lb_range *range)
{
	return range->table ? range->table : range->count;
}

/*
 * Open connections; or the latency, times one more than these, as if each had to wait for those before
 * it: so a fast backend does not get everything (peak EWMA, as in Finagle and linkerd).
 */
static __always_inline __s64 lb_scheduler_load_at(const struct lb_desc *desc, __u32 slot)
{
	int i = slot;
	__u32 *backend = lb_slots.lookup(&i);
	__s64 open = backend ? lb_open_of(*backend) : 0;

	if (!backend || desc->scheduler != LB_SCHEDULER_LOWEST_LATENCY)
		return open;
	return (open > 0 ? open + 1 : 1) * (__s64)(lb_latency_of(*backend) + 1);
}

static __always_inline __u32 lb_scheduler_weight_at(__u32 slot)
{
	struct lb_backend *backend;
	__u32 *index;
	int i = slot;

	index = lb_slots.lookup(&i);
	if (!index)
		return 1;
	i = *index;
	backend = lb_backends.lookup(&i);
	return backend ? backend->weight : 1;
}

/*
 * Of two random slots, the one with less load, in proportion to the weights: nearly as
 * even as the minimum of all, and connections opened at the same time do not all go to the same
 * one.
 */
static __always_inline __u32 lb_scheduler_less_loaded_slot(const struct lb_desc *desc,
							   const struct lb_range *range)
{
	__u32 size = lb_range_size(range);
	__u32 one = bpf_get_prandom_u32() % size;
	__u32 other = one + 1 + bpf_get_prandom_u32() % (size - 1);
	__s64 load_one, load_other;

	if (size == 1)
		return range->base;
	other = lb_range_first(range) + other % size;
	one += lb_range_first(range);
	load_one = lb_scheduler_load_at(desc, one);
	load_other = lb_scheduler_load_at(desc, other);
	if (range->table) {
		load_one *= lb_scheduler_weight_at(other);
		load_other *= lb_scheduler_weight_at(one);
	}
	return load_other < load_one ? other : one;
}

/* The slot of a hash. Without a table it differs by node. */
static __always_inline __u32 lb_scheduler_hashed_slot(const struct lb_range *range, __u32 hash)
{
	return lb_range_first(range) + ((__u64)hash * lb_range_size(range) >> 32);
}

/*
 * The slot determined by the client and the descriptor alone. With a table all nodes choose the
 * same backend, even for a flow that none of them knows. port: the client's, host byte order.
 */
static __always_inline __u32 lb_scheduler_stateless_slot(const struct lb_desc *desc,
							 const struct lb_range *range,
							 const struct lb_addr *client, __u32 port)
{
	if (desc->scheduler == LB_SCHEDULER_SOURCE_HASH)
		return lb_scheduler_hashed_slot(range, lb_client_hash(client));
	return lb_scheduler_hashed_slot(range, lb_flow_hash(client, port, &desc->frontend));
}

/* Whether the choice depends on the client. */
static __always_inline int lb_scheduler_hashes(const struct lb_desc *desc)
{
	return desc->scheduler == LB_SCHEDULER_SOURCE_HASH ||
	       desc->scheduler == LB_SCHEDULER_MAGLEV;
}

/*
 * Sets the client, if session affinity or a hash needs it. port: the client's, host byte order, or
 * at the socket its cookie. The hash is computed here, because the verifier would explore it at
 * each place of a choice.
 */
static __always_inline void lb_opening_set_client(struct lb_opening *opening,
						  const struct lb_addr *client, __u32 port)
{
	opening->client = client;
	if (opening->range->count && lb_scheduler_hashes(opening->desc))
		opening->hashed_slot =
			lb_scheduler_stateless_slot(opening->desc, opening->range, client, port);
}

/* The index in lb_slots of a backend for the flow. The range must not be empty. */
static __always_inline __u32 lb_scheduler_slot(const struct lb_opening *opening)
{
	const struct lb_range *range = opening->range;
	__u32 number;

	if (lb_scheduler_hashes(opening->desc))
		return opening->hashed_slot;
	if (opening->number)
		return range->base + (opening->number - 1) % (range->count + range->table);
	if (opening->desc->scheduler == LB_SCHEDULER_LEAST_CONNECTIONS ||
	    opening->desc->scheduler == LB_SCHEDULER_LOWEST_LATENCY)
		return lb_scheduler_less_loaded_slot(opening->desc, range);
	if (opening->desc->scheduler == LB_SCHEDULER_ROUND_ROBIN)
		number = lb_turn_take(opening->turn);
	else
		number = bpf_get_prandom_u32();
	return lb_range_first(range) + number % lb_range_size(range);
}

#endif
