/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Backends: which one a new connection gets, and whether an earlier choice is still valid. */
#ifndef LB_BACKEND_H
#define LB_BACKEND_H

#include "ejection.h"
#include "limits.h"
#include "maps.h"
#include "retry.h"
#include "scheduler.h"
#include "verdict.h"

/* number: 1 + the slot's number in its range and table; 0 if session affinity chose. */
struct lb_choice {
	struct lb_backend *backend;
	__u32 index;
	__u32 number;
};

/* How many slots a new flow tries, to skip backends on trial; the agent's MOST_ON_TRIAL follows. */
#define LB_TRIALS_PASSED 3

/* The backend of one slot. */
static __always_inline int lb_backend_at(int i, struct lb_choice *choice)
{
	__u32 *slot = lb_slots.lookup(&i);

	if (!slot)
		return -LB_DROP_NO_ENDPOINT;
	i = *slot;
	choice->index = i;
	choice->backend = lb_backends.lookup(&i);
	return choice->backend ? LB_NEXT : -LB_DROP_NO_ENDPOINT;
}

/*
 * The bit of a client that may try a backend, 0 for none. At tc it may be made up, so that a trial
 * would have no result. The process that connects a socket is real, but its address may not be known
 * yet: those of a network namespace are one client.
 */
static __always_inline __u64 lb_opening_client_bit(const struct lb_opening *opening)
{
	struct lb_client_key *key;

	if (opening->socket)
		return 1ULL << (bpf_get_netns_cookie(opening->socket) % 64);
	key = LB_SCRATCH(client);
	/* Or the compiler joins this to the loop that follows, whose end the verifier then misses. */
	asm volatile("" : "+r"(key));
	if (!key)
		return 0;
	lb_client_fill(key, opening->desc->service, opening->client, opening->hook);
	return lb_clients.lookup(key) ? lb_client_bit(key) : 0;
}

static __always_inline int lb_backend_admits(const struct lb_choice *choice, __u64 client_bit)
{
	return !(choice->backend->flags & LB_BACKEND_TRIAL) ||
	       lb_trial_admits(choice->index, client_bit);
}

/* 1 unless the backend is on trial, or has failed the flow; without a branch. */
static __always_inline __u64 lb_backend_is_plain(const struct lb_opening *opening,
						 const struct lb_choice *choice)
{
	__u64 is_plain = lb_is_zero(choice->backend->flags & LB_BACKEND_TRIAL);

	if (opening->retry)
		is_plain &= ~lb_is_zero(opening->retry->failed ^ (1 + choice->index)) &
			    ~lb_is_zero(opening->retry->first ^ lb_retry_mark(choice->index));
	return is_plain;
}

/* Whether the flow may have the chosen backend, if any other is left. */
static __always_inline int lb_backend_suits(const struct lb_opening *opening,
					    struct lb_choice *choice, __u64 client_bit)
{
	return !lb_retry_excludes(opening->retry, choice->index) &&
	       lb_backend_admits(choice, client_bit);
}

/*
 * A flow that a backend on trial does not admit, or that the backend has failed, goes to the next slot
 * of the range, whatever the weights: slots that follow each other in the table may have the same
 * backend.
 */
static __always_inline int lb_backend_pass_trials(const struct lb_opening *opening, __u32 i,
						  struct lb_choice *choice)
{
	const struct lb_range *range = opening->range;
	__u64 client_bit = lb_opening_client_bit(opening);
	int most = LB_TRIALS_PASSED + (opening->retry ? LB_RETRIES : 0);
	int verdict = LB_NEXT;

	for (int tries = 0; tries < most; tries++) {
		if (verdict || lb_backend_suits(opening, choice, client_bit))
			break;
		i = range->base + (i - range->base + 1) % range->count;
		verdict = lb_backend_at(i, choice);
	}
	choice->number = i - range->base + 1;
	return verdict;
}

static __always_inline int lb_backend_select(const struct lb_opening *opening,
					     struct lb_choice *choice)
{
	const struct lb_range *range = opening->range;
	int verdict;
	__u32 i;

	if (!range->count && range->if_empty == LB_EMPTY_PASS)
		return LB_PASS;
	if (!range->count)
		return range->if_empty == LB_EMPTY_DROP ? -LB_DROP_NO_LOCAL_ENDPOINT :
							  -LB_DROP_NO_ENDPOINT;
	i = lb_scheduler_slot(opening);
	verdict = lb_backend_at(i, choice);
	choice->number = i - range->base + 1;
	if (verdict || (!(choice->backend->flags & LB_BACKEND_TRIAL) &&
			!lb_retry_excludes(opening->retry, choice->index)))
		return verdict;
	return lb_backend_pass_trials(opening, i, choice);
}

/* A limit that keeps the flow from the chosen backend, or NULL. */
static __always_inline struct lb_limit *lb_backend_limit(const struct lb_opening *opening,
							 const struct lb_choice *choice)
{
	struct lb_limit *limit = lb_limit_of(opening->desc->flags, opening->desc->service);

	return limit && lb_limit_is_full(limit, choice->index) ? limit : NULL;
}

/*
 * Instead of a backend that is full, one of the next slots whose backend is not; if possible, none that
 * is on trial or has failed the flow. No branch depends on what is found, or the verifier would explore
 * both sides at every step.
 */
static __always_inline int lb_backend_pass_full(const struct lb_opening *opening,
						const struct lb_limit *limit,
						struct lb_choice *choice)
{
	const struct lb_range *range = opening->range;
	__u32 i = range->base + (choice->number + choice->index) % range->count;
	__u64 found = 0, best = 0;
	__u64 rank, is_better;
	__s64 *open;
	int index;

	for (int tries = 0; tries < LB_FULL_TRIED; tries++) {
		if (lb_backend_at(i, choice))
			return opening->hook ? -LB_DROP_NO_ENDPOINT : LB_PASS;
		index = choice->index;
		open = lb_open.lookup(&index);
		if (!open)
			return opening->hook ? -LB_DROP_NO_ENDPOINT : LB_PASS;
		rank = lb_limit_has_room(limit, *(volatile __s64 *)open);
		rank += rank & lb_backend_is_plain(opening, choice);
		is_better = (best - rank) >> 63;
		best += (rank - best) & -is_better;
		found += (i - found) & -is_better;
		i = range->base + (i - range->base + 1) % range->count;
	}
	if (!best)
		return lb_limit_if_full(opening, limit);
	choice->number = found - range->base + 1;
	return lb_backend_at(found, choice);
}

/*
 * A backend that was chosen earlier, if it has any of the flags. serial: the backend's
 * serial at that time; the index may belong to another backend by now.
 */
static __always_inline struct lb_backend *lb_backend_recall(__u32 index, __u32 serial, __u32 flags)
{
	int i = index;
	struct lb_backend *backend = lb_backends.lookup(&i);

	if (!backend || backend->serial != serial)
		return NULL;
	return backend->flags & flags ? backend : NULL;
}

/* For new connections with an earlier choice. */
static __always_inline struct lb_backend *lb_backend_usable(__u32 index, __u32 serial)
{
	return lb_backend_recall(index, serial, LB_BACKEND_USABLE);
}

/*
 * For UDP flows, which stay with a backend that serves: traffic policies, topology hints and
 * readiness apply to new flows only.
 */
static __always_inline struct lb_backend *lb_backend_serving(__u32 index, __u32 serial)
{
	return lb_backend_recall(index, serial, LB_BACKEND_USABLE | LB_BACKEND_SERVING);
}

#endif
