/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Limits of a Service port, for those with LB_DESC_LIMITS: open connections of each backend, and of each
 * client; new connections of each client. Those of clients are kept at tc and XDP: a connection is
 * compared with them when its backend is chosen, and noted when its flow begins, so that XDP and tc do
 * not both take it. Nothing is atomic but each addition: as many connections as there are CPUs may pass
 * where one may, but what they take is noted. Not every end is seen here, and a client may be evicted:
 * the agent corrects the numbers.
 */
#ifndef LB_LIMITS_H
#define LB_LIMITS_H

#include "clock.h"
#include "ejection.h"
#include "maps.h"
#include "open_connections.h"
#include "packet.h"
#include "scheduler.h"
#include "verdict.h"

/* How many slots a new flow tries where the chosen backend is full. */
#define LB_FULL_TRIED 8

static __always_inline struct lb_limit *lb_limit_of(__u32 desc_flags, __u32 service)
{
	return desc_flags & LB_DESC_LIMITS ? lb_limits.lookup(&service) : NULL;
}

/* limit: NULL for none. */
static __always_inline int lb_limit_is_of_clients(const struct lb_limit *limit)
{
	return limit && (limit->interval || limit->client_open);
}

/* -reason. flag: enum lb_limit_flag, whether it is a silent one. */
static __always_inline int lb_limit_verdict(const struct lb_limit *limit, int reason, __u32 flag)
{
	return limit->flags & flag ? -(reason | LB_DROP_SILENT) : -reason;
}

/* 1 if x is 0, else 0; without a branch. */
static __always_inline __u64 lb_is_zero(__u32 x)
{
	__u64 borrowed = (__u64)x - 1;

	asm volatile("" : "+r"(borrowed));
	return borrowed >> 63;
}

/* 1 if the backend may have another connection, else 0; without a branch. */
static __always_inline __u64 lb_limit_has_room(const struct lb_limit *limit, __s64 open)
{
	__u64 room = open - limit->open;

	asm volatile("" : "+r"(room));
	return room >> 63;
}

static __always_inline int lb_limit_is_full(const struct lb_limit *limit, __u32 backend)
{
	return limit->open && lb_open_of(backend) >= (__s64)limit->open;
}

/*
 * The verdict where no backend that was tried has room. If others may have, the client shall repeat its
 * packet. A socket's packet is left to tc, which looks again, and answers.
 */
static __always_inline int lb_limit_if_full(const struct lb_opening *opening,
					    const struct lb_limit *limit)
{
	__u64 has_others = (LB_FULL_TRIED - (__u64)opening->range->count) >> 63;
	__u64 is_silent = limit->flags & LB_LIMIT_OPEN_DROPS;

	if (!opening->hook)
		return LB_PASS;
	is_silent |= has_others;
	asm volatile("" : "+r"(is_silent));
	return -(int)(LB_DROP_BACKENDS_FULL + LB_DROP_SILENT * is_silent);
}

/* How many of a client's connections the packet has just ended: it opens the same one again. */
static __always_inline __s64 lb_limit_ended(void)
{
	struct lb_ended_flow *ending = LB_SCRATCH(ending);

	return ending && ending->end;
}

/*
 * LB_NEXT or -reason: whether the client of a packet may open a connection. One that is retried is not
 * a new one, and this node is no client.
 */
static __always_inline int lb_limit_check_client(const struct lb_opening *opening,
						 const struct lb_limit *limit)
{
	struct lb_client_key *key = LB_SCRATCH(client);
	struct lb_client_use *use;

	if (!key || opening->hook == LB_HOOK_HOST_EGRESS || !lb_limit_is_of_clients(limit) ||
	    opening->retry->failed)
		return LB_NEXT;
	lb_client_fill(key, opening->desc->service, opening->client, opening->hook);
	use = lb_client_uses.lookup(key);
	if (!use)
		return LB_NEXT;
	if (limit->client_open && use->open - lb_limit_ended() >= (__s64)limit->client_open)
		return lb_limit_verdict(limit, LB_DROP_CLIENT_OPEN, LB_LIMIT_CLIENT_OPEN_DROPS);
	if (limit->interval && (__s64)(use->due - lb_now() - limit->burst) > 0)
		return lb_limit_verdict(limit, LB_DROP_CLIENT_NEW, LB_LIMIT_CLIENT_NEW_DROPS);
	return LB_NEXT;
}

static __always_inline struct lb_client_use *lb_client_use_of(struct lb_client_key *key)
{
	struct lb_client_use *use = lb_client_uses.lookup(key);
	struct lb_client_use none = {};

	if (use)
		return use;
	lb_client_uses.insert(key, &none);
	return lb_client_uses.lookup(key);
}

/* A new connection is due an interval after the last one, or after now. Only additions, while it is busy. */
static __always_inline void lb_limit_take(struct lb_client_use *use, __u64 interval, __u64 now)
{
	if ((__s64)(*(volatile __u64 *)&use->due - now) > 0)
		__sync_fetch_and_add(&use->due, interval);
	else
		*(volatile __u64 *)&use->due = now + interval;
}

/* A flow begins. is_new: it was compared with the limits. */
static __always_inline void lb_limit_begin(const struct lb_packet *pkt, const struct lb_flow *flow,
					   int is_new)
{
	struct lb_limit *limit = lb_limit_of(flow->desc_flags, flow->service);
	struct lb_client_key *key = LB_SCRATCH(client);
	struct lb_client_use *use;

	if (!key || flow->hook == LB_HOOK_HOST_EGRESS || !lb_limit_is_of_clients(limit))
		return;
	lb_client_fill(key, flow->service, &pkt->tuple.saddr, flow->hook);
	use = lb_client_use_of(key);
	if (!use)
		return;
	__sync_fetch_and_add(&use->open, 1);
	if (is_new)
		lb_limit_take(use, limit->interval, pkt->now);
}

/*
 * A flow ends; original: its entry. Of a client that was evicted, more may end than were counted since.
 */
static __always_inline void lb_limit_end(const struct lb_conntrack *original,
					 const struct lb_addr *client)
{
	struct lb_client_key *key = LB_SCRATCH(client);
	struct lb_client_use *use;

	if (!(original->desc_flags & LB_DESC_LIMITS) || !key)
		return;
	lb_client_fill(key, original->service, client, original->hook);
	use = lb_client_uses.lookup(key);
	if (use && *(volatile __s64 *)&use->open > 0)
		__sync_fetch_and_add(&use->open, -1);
}

#endif
