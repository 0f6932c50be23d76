/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Frontends: from (address, port, protocol) to a descriptor; and the flags of an address. */
#ifndef LB_FRONTEND_H
#define LB_FRONTEND_H

#include "addr.h"
#include "filter.h"
#include "maps.h"

/* index: of the frontend, for its counters. */
struct lb_match {
	struct lb_desc *desc;
	__u32 index;
};

/* Two array loads. 0 also if lb_dest_filter holds another address with the same fold. */
static __always_inline __u64 lb_addr_flags_cached(const struct lb_addr *addr)
{
	int i = lb_addr_fold(addr);
	struct lb_dest *dest = lb_dest_filter.lookup(&i);
	struct lb_addr_state *state;

	if (!dest)
		return 0;
	i = dest->known - 1;
	state = lb_addr_flags.lookup(&i);
	return state && lb_addr_is_equal(&state->addr, addr) ? state->flags : 0;
}

/* enum lb_addr_flag; 0 if the address is neither a VIP nor a node address. */
static __always_inline __u64 lb_addr_flags_of(const struct lb_addr *addr)
{
	struct lb_addr key = *addr;
	__u64 flags = lb_addr_flags_cached(&key);
	struct lb_addr_state *state;
	__u32 *index;
	int i;

	if (flags)
		return flags;
	index = lb_addrs.lookup(&key);
	if (!index)
		return 0;
	i = *index;
	state = lb_addr_flags.lookup(&i);
	return state ? state->flags : 0;
}

static __always_inline int lb_frontend_is_equal(const struct lb_frontend_key *a,
						const struct lb_frontend_key *b)
{
	return a->port == b->port && a->proto == b->proto && lb_addr_is_equal(&a->addr, &b->addr);
}

/*
 * One hash lookup and two array loads. The descriptor contains its frontend, so if the index is
 * given to another frontend between two of these loads, that is a miss.
 */
static __always_inline int lb_frontend_lookup(struct lb_frontend_key *key, struct lb_match *match)
{
	__u32 *index = lb_frontends.lookup(key);
	__u64 *word;
	int i;

	if (!index)
		return 0;
	i = *index;
	match->index = i;
	word = lb_current.lookup(&i);
	if (!word)
		return 0;
	i = *(volatile __u64 *)word;
	match->desc = lb_descs.lookup(&i);
	return match->desc && lb_frontend_is_equal(&match->desc->frontend, key);
}

/* Looks up the address itself. The wildcard address, which stands for NodePorts, is not a VIP. */
static __always_inline int lb_vip_lookup(struct lb_frontend_key *key, struct lb_match *match)
{
	return lb_filter_flags_of(&key->addr) & (LB_ADDR_CLUSTER_IP | LB_ADDR_EXTERNAL) &&
	       lb_frontend_lookup(key, match) && match->desc->type != LB_NODE_PORT;
}

/* Looks up the same port on the wildcard address of the family. Changes the key. */
static __always_inline int lb_node_port_lookup(struct lb_frontend_key *key, struct lb_match *match)
{
	lb_addr_make_wildcard(&key->addr);
	return lb_frontend_lookup(key, match);
}

#endif
