/* SPDX-License-Identifier: Apache-2.0 */
/* What an address is, alone. Each of those that are asked is either that or unknown. */
#include "config.h"
#include "types.h"
#include "maps.h"
#include "verdict.h"
#include "addr.h"
#include "frontend.h"

#define LB_ASKED 32

struct lb_answers {
	__u64 right;
	__u64 unknown;
	__u64 wrong;
};

LB_MAP("array", int, struct lb_addr_state, lb_asked, LB_ASKED);
LB_MAP("percpu_array", int, struct lb_answers, lb_answers, 1);

int lb_pod_ingress(struct __sk_buff *skb)
{
	int i = bpf_get_prandom_u32() % LB_ASKED;
	struct lb_answers *answers;
	struct lb_addr_state *asked;
	int zero = 0;
	__u64 flags;

	asked = lb_asked.lookup(&i);
	answers = lb_answers.lookup(&zero);
	if (!asked || !answers)
		return LB_PASS;
	flags = lb_addr_flags_of(&asked->addr);
	if (!flags)
		answers->unknown++;
	else if (flags == asked->flags)
		answers->right++;
	else
		answers->wrong++;
	return LB_PASS;
}
