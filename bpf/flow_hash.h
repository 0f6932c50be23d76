/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * A hash of client and frontend. It is the same on all nodes, and dataplane/explain/flow_hash.py computes it
 * too: it has no per-node seed, and words are in network byte order. It is 32-bit MurmurHash3
 * (Austin Appleby, public domain) over these words.
 */
#ifndef LB_FLOW_HASH_H
#define LB_FLOW_HASH_H

#include "addr.h"

#define LB_FLOW_HASH_SEED 0x65627066

static __always_inline __u32 lb_rotate_left(__u32 word, int bits)
{
	return word << bits | word >> (32 - bits);
}

static __always_inline __u32 lb_flow_hash_word(__u32 hash, __u32 word)
{
	word = lb_rotate_left(word * 0xcc9e2d51, 15) * 0x1b873593;
	return lb_rotate_left(hash ^ word, 13) * 5 + 0xe6546b64;
}

static __always_inline __u32 lb_flow_hash_addr(__u32 hash, const struct lb_addr *addr)
{
	hash = lb_flow_hash_word(hash, bpf_ntohl(addr->word[0]));
	hash = lb_flow_hash_word(hash, bpf_ntohl(addr->word[1]));
	hash = lb_flow_hash_word(hash, bpf_ntohl(addr->word[2]));
	return lb_flow_hash_word(hash, bpf_ntohl(addr->word[3]));
}

/* bytes: how many have been hashed. */
static __always_inline __u32 lb_flow_hash_end(__u32 hash, __u32 bytes)
{
	hash ^= bytes;
	hash = (hash ^ hash >> 16) * 0x85ebca6b;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35;
	return hash ^ hash >> 16;
}

static __always_inline __u32 lb_client_hash(const struct lb_addr *client)
{
	return lb_flow_hash_end(lb_flow_hash_addr(LB_FLOW_HASH_SEED, client), sizeof(*client));
}

/* port: the client's, host byte order. A NodePort has the wildcard address, on every node. */
static __always_inline __u32 lb_flow_hash(const struct lb_addr *client, __u32 port,
					  const struct lb_frontend_key *frontend)
{
	__u32 hash = lb_flow_hash_addr(LB_FLOW_HASH_SEED, client);

	hash = lb_flow_hash_addr(hash, &frontend->addr);
	hash = lb_flow_hash_word(hash, port);
	hash = lb_flow_hash_word(hash, (__u32)bpf_ntohs(frontend->port) << 16 | frontend->proto);
	return lb_flow_hash_end(hash, 2 * sizeof(*client) + 2 * sizeof(port));
}

#endif
