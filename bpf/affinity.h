/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Session affinity: a new flow goes to the backend of the client's last flow to the same Service
 * port, unless the affinity timeout has passed or the range used for this flow no longer names that
 * backend.
 */
#ifndef LB_AFFINITY_H
#define LB_AFFINITY_H

#include "backend.h"
#include "clock.h"
#include "maps.h"

/* Steps of a binary search. In a range of over a million slots some backends are not found. */
#define LB_RANGE_STEPS 20

/*
 * Whether a range names a backend: its slots are sorted by backend index. No branch depends on the
 * value of a slot, or the verifier would explore both sides at every step.
 */
static __always_inline int lb_range_has(const struct lb_range *range, __u32 backend)
{
	__u64 count = range->count;
	__u64 first = range->base;
	__u64 is_right;
	__u32 *slot;
	int i;

	if (!count)
		return 0;
	for (int step = 0; step < LB_RANGE_STEPS && count > 1; step++) {
		i = first + count / 2;
		slot = lb_slots.lookup(&i);
		if (!slot)
			return 0;
		is_right = ((__u64)*slot - backend - 1) >> 63;
		asm volatile("" : "+r"(is_right));
		first += is_right * (count / 2);
		count -= count / 2;
	}
	i = first;
	slot = lb_slots.lookup(&i);
	return slot && *slot == backend;
}

static __always_inline struct lb_affinity lb_affinity_of(const struct lb_choice *choice, __u64 now)
{
	return (struct lb_affinity){
		.backend = choice->index,
		.serial = choice->backend->serial,
		.last_used = now,
	};
}

/*
 * Each an aligned 8-byte store: no reader sees half a choice, or an old choice with the new time.
 */
static __always_inline void lb_affinity_replace(struct lb_affinity *entry,
						const struct lb_affinity *value)
{
	__u64 chosen;

	__builtin_memcpy(&chosen, value, sizeof(chosen));
	*(volatile __u64 *)entry = chosen;
	*(volatile __u64 *)&entry->last_used = value->last_used;
}

/*
 * Returns 1 with choice filled if the entry is valid for this flow. Every field is checked, because
 * the kernel may reuse the element for another client in the meantime.
 */
static __always_inline int lb_affinity_recall(const struct lb_affinity *entry,
					      const struct lb_opening *opening, __u64 now,
					      struct lb_choice *choice)
{
	__u64 chosen = *(volatile __u64 *)entry;
	struct lb_affinity value;

	__builtin_memcpy(&value, &chosen, sizeof(chosen));
	if ((__s64)(now - entry->last_used) >= (__s64)(opening->desc->affinity_timeout * LB_SECOND))
		return 0;
	if (!lb_range_has(opening->range, value.backend))
		return 0;
	choice->index = value.backend;
	choice->backend = lb_backend_usable(value.backend, value.serial);
	return choice->backend && lb_backend_suits(opening, choice, 0);
}

/* The client's flows to come go to where this one goes. */
static __always_inline void lb_affinity_move(const struct lb_opening *opening,
					     const struct lb_choice *choice)
{
	struct lb_client_key key = { .service = opening->desc->service,
				     .client = *opening->client };
	struct lb_affinity *entry = lb_affinity.lookup(&key);
	struct lb_affinity value = lb_affinity_of(choice, lb_now());

	if (entry)
		lb_affinity_replace(entry, &value);
}

/* Like lb_backend_select(), but session affinity comes first if the Service port has it. */
static __always_inline int lb_affinity_prefer(const struct lb_opening *opening,
					      struct lb_choice *choice)
{
	const struct lb_desc *desc = opening->desc;
	struct lb_client_key key = { .service = desc->service, .client = *opening->client };
	struct lb_affinity *entry = NULL;
	struct lb_affinity value;
	__u64 now = desc->affinity_timeout ? lb_now() : 0;
	int verdict;

	if (desc->affinity_timeout)
		entry = lb_affinity.lookup(&key);
	if (!entry) {
		verdict = lb_backend_select(opening, choice);
		if (verdict || !desc->affinity_timeout)
			return verdict;
		value = lb_affinity_of(choice, now);
		if (!lb_affinity.insert(&key, &value))
			return LB_NEXT;
		/* Another flow of this client inserted it first. */
		entry = lb_affinity.lookup(&key);
		if (!entry)
			return LB_NEXT;
	}
	if (lb_affinity_recall(entry, opening, now, choice)) {
		*(volatile __u64 *)&entry->last_used = now;
		return LB_NEXT;
	}
	verdict = lb_backend_select(opening, choice);
	if (verdict)
		return verdict;
	value = lb_affinity_of(choice, now);
	lb_affinity_replace(entry, &value);
	return LB_NEXT;
}

/* The same, and if that backend is full, another one. */
static __always_inline int lb_affinity_select(const struct lb_opening *opening,
					      struct lb_choice *choice)
{
	int verdict = lb_affinity_prefer(opening, choice);
	struct lb_limit *limit;

	if (verdict)
		return verdict;
	limit = lb_backend_limit(opening, choice);
	if (!limit)
		return LB_NEXT;
	verdict = lb_backend_pass_full(opening, limit, choice);
	if (!verdict && opening->desc->affinity_timeout)
		lb_affinity_move(opening, choice);
	return verdict;
}

#endif
