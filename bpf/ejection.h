/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Ejection: endpoints that fail are left out. The programs count failures, and let a single
 * connection at a time through to a backend on trial; the agent reads the counts and decides.
 * Anybody can have a connection fail that a healthy backend never sees, from a made-up address too:
 * only clients that have completed a handshake with the Service port count, and it is counted how
 * many they are. Nothing is atomic: of two simultaneous failures one may not count, and two
 * simultaneous connections may both reach a backend on trial.
 */
#ifndef LB_EJECTION_H
#define LB_EJECTION_H

#include "addr.h"
#include "clock.h"
#include "flow_hash.h"
#include "maps.h"

/* A SYN without an answer for this long is a failure: a little less than a client waits. */
#define LB_ANSWER_TIME (LB_SECOND - LB_SECOND / 8)

/* How long a connection to a backend on trial may be without a result until the next one may try. */
#define LB_TRIAL_TIME (2 * LB_SECOND)

/*
 * hook: that of the client's packets. One outside may have all addresses of a /64; this node is one
 * client whatever its addresses, without any.
 */
static __always_inline void lb_client_fill(struct lb_client_key *key, __u32 service,
					   const struct lb_addr *client, __u8 hook)
{
	int is_ipv4 = lb_addr_is_ipv4(client);
	__u32 network = -(__u32)(is_ipv4 || hook != LB_HOOK_HOST_EGRESS);
	__u32 subnet = -(__u32)(is_ipv4 || hook != LB_HOOK_HOST_INGRESS) & network;
	__u32 last = -(__u32)(hook != LB_HOOK_HOST_EGRESS);

	key->service = service;
	key->client.word[0] = client->word[0] & network;
	key->client.word[1] = client->word[1] & network;
	key->client.word[2] = client->word[2] & subnet;
	key->client.word[3] = client->word[3] & subnet & last;
}

/* The bit of a client in struct lb_failures. */
static __always_inline __u64 lb_client_bit(const struct lb_client_key *key)
{
	return 1ULL << (lb_client_hash(&key->client) >> 26);
}

/* 0 if the index no longer belongs to the flow's backend. */
static __always_inline __u32 lb_backend_flags(int index, __u32 serial)
{
	struct lb_backend *backend = lb_backends.lookup(&index);

	return backend && backend->serial == serial ? backend->flags : 0;
}

static __always_inline int lb_backend_is_watched(int index, __u32 serial)
{
	return lb_backend_flags(index, serial) & LB_BACKEND_WATCHED;
}

/* The watched backend has accepted a connection. */
static __always_inline void lb_ejection_note_success(int backend)
{
	struct lb_failures *failures = lb_failures.lookup(&backend);

	if (failures && failures->in_a_row) {
		failures->in_a_row = 0;
		failures->failed = 0;
	}
}

/* The client has completed a handshake with the watched backend. */
static __always_inline void lb_ejection_note_client(int backend, __u32 serial,
						    struct lb_client_key *client)
{
	struct lb_client value = { lb_now(), backend, serial };
	struct lb_client *entry = lb_clients.lookup(client);

	if (!entry) {
		lb_clients.update(client, &value);
		return;
	}
	*(volatile __u64 *)&entry->established = value.established;
	*(volatile __u64 *)&entry->backend = *(__u64 *)&value.backend;
}

/*
 * The backend has refused a connection of the client, or has not answered for a second. On trial each
 * client counts once, so that the same one cannot fail for all others.
 */
static __always_inline void lb_ejection_note_failure(int index, __u32 serial,
						     struct lb_client_key *client)
{
	__u32 flags = lb_backend_flags(index, serial);
	__u64 bit = lb_client_bit(client);
	struct lb_failures *failures;

	if (!(flags & LB_BACKEND_WATCHED) || !lb_clients.lookup(client))
		return;
	failures = lb_failures.lookup(&index);
	if (!failures || (flags & LB_BACKEND_TRIAL && failures->failed & bit))
		return;
	failures->in_a_row++;
	failures->failed |= bit;
	failures->busy_until = 0;
}

/*
 * Whether a backend on trial may get a new connection: one at a time, from each client once, and all
 * after one succeeded. client: its bit, or 0 for one whose connection may have no result.
 */
static __always_inline int lb_trial_admits(int backend, __u64 client)
{
	struct lb_failures *failures = lb_failures.lookup(&backend);
	__u64 now = lb_now();

	if (!failures || !failures->in_a_row)
		return 1;
	if (!(client & ~failures->tried) || now < failures->busy_until)
		return 0;
	failures->tried |= client;
	failures->busy_until = now + LB_TRIAL_TIME;
	return 1;
}

/* The connection for which a backend was chosen is not made after all. The client is outside. */
static __always_inline void lb_trial_take_back(int backend, __u32 service,
					       const struct lb_addr *client)
{
	struct lb_failures *failures = lb_failures.lookup(&backend);
	struct lb_client_key key;

	if (!failures || !failures->busy_until)
		return;
	lb_client_fill(&key, service, client, LB_HOOK_HOST_INGRESS);
	failures->tried &= ~lb_client_bit(&key);
	failures->busy_until = 0;
}

#endif
