/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lookup from a frontend to a backend alone. Each backend of a set has the number of the set as
 * its port, the descriptor has it as its affinity timeout, and with source ranges it is the only
 * client of the set, as an IPv4 address: they must never differ.
 */
#include "config.h"
#include "types.h"
#include "maps.h"
#include "verdict.h"
#include "addr.h"
#include "counters.h"
#include "frontend.h"
#include "backend.h"
#include "source_range.h"

struct lb_lookups {
	__u64 found;
	__u64 missed;
	__u64 mixed;
};

/* The frontend to look up. */
LB_MAP("array", int, struct lb_frontend_key, lb_wanted, 1);
LB_MAP("percpu_array", int, struct lb_lookups, lb_lookups, 1);

static __always_inline int lb_is_mixed(const struct lb_desc *desc, const struct lb_backend *backend)
{
	struct lb_addr client;
	struct lb_addr other;

	lb_addr_from_ipv4(&client, bpf_htonl(desc->affinity_timeout));
	lb_addr_from_ipv4(&other, bpf_htonl(desc->affinity_timeout + 1));
	if (lb_source_range_check(desc, &client))
		return 1;
	if (desc->flags & LB_DESC_SOURCE_RANGES && !lb_source_range_check(desc, &other))
		return 1;
	return bpf_ntohs(backend->port) != desc->affinity_timeout;
}

static __always_inline int lb_look_up(struct lb_lookups *lookups, const struct lb_frontend_key *of)
{
	struct lb_frontend_key key = *of;
	struct lb_opening opening = {};
	struct lb_choice choice = {};
	struct lb_match match = {};

	if (!lb_frontend_lookup(&key, &match))
		goto missed;
	lb_opening_fill(&opening, match.desc, match.index, 1);
	if (lb_backend_select(&opening, &choice))
		goto missed;
	lookups->found++;
	if (lb_is_mixed(match.desc, choice.backend))
		lookups->mixed++;
	lb_count_connection(match.index, choice.index);
	return LB_NEXT;
missed:
	lookups->missed++;
	return LB_PASS;
}

int lb_pod_ingress(struct __sk_buff *skb)
{
	struct lb_frontend_key *wanted;
	struct lb_lookups *lookups;
	int zero = 0;

	wanted = lb_wanted.lookup(&zero);
	lookups = lb_lookups.lookup(&zero);
	return wanted && lookups ? lb_look_up(lookups, wanted) : LB_PASS;
}

/* The same for a NodePort, by the wildcard address of the family. */
int lb_pod_egress(struct __sk_buff *skb)
{
	struct lb_frontend_key *wanted;
	struct lb_frontend_key key;
	struct lb_match match = {};
	int zero = 0;

	wanted = lb_wanted.lookup(&zero);
	if (!wanted)
		return LB_PASS;
	key = *wanted;
	return lb_node_port_lookup(&key, &match) ? LB_NEXT : LB_PASS;
}
