/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The client address of a socket, for session affinity, source ranges and flow records. (At tc the
 * client is the source of the packet.)
 */
#ifndef LB_SOCK_CLIENT_H
#define LB_SOCK_CLIENT_H

#include "addr.h"
#include "maps.h"

static __always_inline __u32 lb_netns_flags(void *ctx)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);
	struct lb_netns *netns = lb_netns.lookup(&cookie);

	return netns ? netns->flags : 0;
}

/* Returns 1 if a process of the host connects to peer: the client is the node's primary address. */
static __always_inline int lb_sock_client_host(void *ctx, const struct lb_addr *peer,
					       struct lb_addr *client)
{
	struct lb_settings *settings = lb_settings_get();

	if (!settings || !(lb_netns_flags(ctx) & LB_NETNS_HOST))
		return 0;
	*client = lb_addr_is_ipv4(peer) ? settings->node4 : settings->node6;
	return 1;
}

/*
 * The client that connects to peer. The address of a pod without tc cover is unknown: it becomes
 * 0:4:<cookie> or 0:6:<cookie>, with the cookie of its network namespace. Each family is a separate
 * client, because a Service port has different backends in each. The agent knows which pod has the
 * namespace of a cookie in a flow record.
 */
static __always_inline void lb_sock_client_get(void *ctx, const struct lb_addr *peer,
					       struct lb_addr *client)
{
	__u64 cookie = bpf_get_netns_cookie(ctx);

	if (lb_sock_client_host(ctx, peer, client))
		return;
	client->word[0] = 0;
	client->word[1] = bpf_htonl(lb_addr_is_ipv4(peer) ? 4 : 6);
	__builtin_memcpy(&client->word[2], &cookie, sizeof(cookie));
}

#endif
