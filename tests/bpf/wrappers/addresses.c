/* SPDX-License-Identifier: Apache-2.0 */
/* lb_addr_flags_of() alone: for each address it returns the expected flags, or none. */
#include "config.h"
#include "types.h"
#include "maps.h"
#include "verdict.h"
#include "addr.h"
#include "frontend.h"

#define LB_EXPECTED 32

struct lb_results {
	__u64 right;
	__u64 unknown;
	__u64 wrong;
};

LB_MAP("array", int, struct lb_addr_state, lb_expected, LB_EXPECTED);
LB_MAP("percpu_array", int, struct lb_results, lb_results, 1);

int lb_pod_ingress(struct __sk_buff *skb)
{
	int i = bpf_get_prandom_u32() % LB_EXPECTED;
	struct lb_results *results;
	struct lb_addr_state *expected;
	int zero = 0;
	__u64 flags;

	expected = lb_expected.lookup(&i);
	results = lb_results.lookup(&zero);
	if (!expected || !results)
		return LB_PASS;
	flags = lb_addr_flags_of(&expected->addr);
	if (!flags)
		results->unknown++;
	else if (flags == expected->flags)
		results->right++;
	else
		results->wrong++;
	return LB_PASS;
}
