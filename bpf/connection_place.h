/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where the record of a socket's TCP connection is. With a hash of the cookie, every lookup would
 * be a cache miss. But the kernel increments cookies on each CPU, so their last bits lead to
 * adjacent places. If another connection has the place, the record goes to lb_connections.
 */
#ifndef LB_CONNECTION_PLACE_H
#define LB_CONNECTION_PLACE_H

#include "maps.h"

static __always_inline struct lb_conn_place *lb_conn_place_of(__u64 cookie)
{
	int i = cookie & (LB_CONN_PLACES - 1);

	return lb_conn_places.lookup(&i);
}

/*
 * Returns 1 if this socket now has the place. Linux 5.10 has no atomic exchange for programs: if
 * several claim a free place at the same time, only one that finds itself alone gets it.
 */
static __always_inline int lb_conn_place_take(struct lb_conn_place *place, __u64 cookie)
{
	__u64 owner = *(volatile __u64 *)&place->cookie;
	int is_alone;

	if (owner)
		return owner == cookie;
	__sync_fetch_and_add(&place->claims, 1);
	is_alone = *(volatile __u64 *)&place->claims == 1 && !*(volatile __u64 *)&place->cookie;
	if (is_alone)
		*(volatile __u64 *)&place->cookie = cookie;
	__sync_fetch_and_add(&place->claims, -1);
	return is_alone;
}

/* NULL if no connection of the socket was translated. */
static __always_inline struct lb_connection *lb_connection_of(__u64 cookie)
{
	struct lb_conn_place *place = lb_conn_place_of(cookie);

	if (place && place->cookie == cookie)
		return &place->connection;
	return lb_connections.lookup(&cookie);
}

static __always_inline void lb_connection_store(__u64 cookie, struct lb_connection *connection)
{
	struct lb_conn_place *place = lb_conn_place_of(cookie);

	if (place && lb_conn_place_take(place, cookie))
		place->connection = *connection;
	else
		lb_connections.update(&cookie, connection);
}

static __always_inline void lb_connection_forget(__u64 cookie)
{
	struct lb_conn_place *place = lb_conn_place_of(cookie);

	if (!place || place->cookie != cookie) {
		lb_connections.delete(&cookie);
		return;
	}
	__builtin_memset(&place->connection, 0, sizeof(place->connection));
	asm volatile("" : : : "memory");
	*(volatile __u64 *)&place->cookie = 0;
}

#endif
