/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Routes that the kernel has just found, for packets that ask exactly the same again. Each CPU
 * remembers its own, for 2^LB_NEXT_HOP_TIME ns: no longer do packets follow a route that is gone, or go
 * to the MAC address that a neighbour had before.
 */
#ifndef LB_NEXT_HOP_H
#define LB_NEXT_HOP_H

#include "filter.h"
#include "maps.h"
#include "packet.h"

/* 8 ms, and up to a tick more with the coarse clock. */
#define LB_NEXT_HOP_TIME 23

static __always_inline struct lb_next_hop *lb_next_hop_place(const struct bpf_fib_lookup *fib)
{
	__u64 hash = lb_ends_hash(fib->ipv6_src[0] ^ fib->ipv6_src[3] ^ fib->ifindex,
				  fib->ipv6_dst[0] ^ fib->ipv6_dst[3], fib->sport, fib->dport);
	int i = hash >> 48 & (LB_NEXT_HOPS - 1);

	return lb_next_hops.lookup(&i);
}

/* Whether the route holds for this question, length and time. One branch, for the verifier's sake. */
static __always_inline int lb_next_hop_answers(const struct lb_next_hop *hop,
					       const struct bpf_fib_lookup *fib, __u32 len,
					       __u64 now)
{
	const __u64 *question = __builtin_assume_aligned(fib, sizeof(*question));
	__u64 is_old = (now - hop->found) >> LB_NEXT_HOP_TIME;
	__u32 is_too_long = (hop->answer.mtu_result - len) >> 31;
	__u64 difference = is_old | is_too_long;
	__u32 i;

#pragma unroll
	for (i = 0; i < LB_QUESTION_WORDS; i++)
		difference |= hop->question[i] ^ question[i];
	return !difference;
}

/*
 * bpf_fib_lookup() for a packet of this length, 0 for any. fib: aligned to 8 bytes. Only routes with
 * a known neighbour are remembered.
 */
static __always_inline int lb_next_hop_find(struct bpf_fib_lookup *fib, void *ctx, __u32 len,
					    __u64 now)
{
	struct lb_next_hop *hop = lb_next_hop_place(fib);
	int result;

	fib->tot_len = 0;
	if (hop && lb_next_hop_answers(hop, fib, len, now)) {
		*fib = hop->answer;
		return BPF_FIB_LKUP_RET_SUCCESS;
	}
	if (hop) {
		hop->found = 0;
		__builtin_memcpy(hop->question, fib, sizeof(hop->question));
	}
	fib->tot_len = len;
	result = bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
	/* Without a length, the MTU in the answer may be that of the device. */
	if (hop && !result && (len || !LB_HAS_FIB_MTU)) {
		hop->answer = *fib;
		hop->found = now;
	}
	return result;
}

#endif
