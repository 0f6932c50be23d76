/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lb_xdp puts a frame in place and goes on to a program that is compiled elsewhere, so that one call
 * of the kernel can run that a million times; or it is the least that such a program can be. RELAY:
 * which of it.
 */
#include "config.h"
#include "csum.h"
#include "maps.h"
#include "types.h"

#define RELAY_ON 0
#define RELAY_NOTHING 1
#define RELAY_REFLECT 2
#define RELAY_GROW 3

#define RELAY_SIZE 80
#define RELAY_GROWTH 20

/*
 * client, port: what is added to the last word of the source address and to the destination port,
 * below the limits. *_at: where these are, and the checksum over them.
 */
struct relay {
	__u32 bytes[RELAY_SIZE / 4];
	__u32 clients;
	__u32 client;
	__u32 ports;
	__u32 port;
	__u32 source_at;
	__u32 target_at;
	__u32 csum_at;
};

LB_MAP("array", int, struct relay, lb_relay, 1);
LB_MAP("prog", int, int, lb_relay_next, 1);

static __always_inline __u32 relay_step(__u32 *at, __u32 limit)
{
	__u32 now = *at;

	*at = now + 1 < limit ? now + 1 : 0;
	return now;
}

static __always_inline int relay_change(void *frame, void *end, struct relay *relay)
{
	__be32 *source = frame + (__u8)relay->source_at;
	__be16 *target = frame + (__u8)relay->target_at;
	__sum16 *csum = frame + (__u8)relay->csum_at;
	__be32 from[2], to[2];

	if ((void *)(source + 1) > end || (void *)(target + 1) > end || (void *)(csum + 1) > end)
		return -1;
	from[0] = *source;
	from[1] = *target;
	to[0] = bpf_htonl(bpf_ntohl(from[0]) + relay_step(&relay->client, relay->clients));
	to[1] = bpf_htons(bpf_ntohs(from[1]) + relay_step(&relay->port, relay->ports));
	*csum = lb_csum_fold(bpf_csum_diff(from, sizeof(from), to, sizeof(to), (__u16) ~*csum));
	*source = to[0];
	*target = to[1];
	return 0;
}

static __always_inline int relay_put(struct xdp_md *ctx, struct relay *relay)
{
	int grown = (int)(ctx->data_end - ctx->data) - RELAY_SIZE;
	__u32 *frame;

	if (grown && bpf_xdp_adjust_head(ctx, grown))
		return -1;
	frame = (void *)(long)ctx->data;
	if ((void *)frame + RELAY_SIZE > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memcpy(frame, relay, RELAY_SIZE);
	return relay_change(frame, (void *)(long)ctx->data_end, relay);
}

static __always_inline int relay_on(struct xdp_md *ctx)
{
	struct relay *relay;
	int zero = 0;

	relay = lb_relay.lookup(&zero);
	if (!relay || relay_put(ctx, relay))
		return XDP_ABORTED;
	lb_relay_next.call(ctx, 0);
	return XDP_ABORTED;
}

/* What a balancer cannot do without: both ends of the link and of the network change places. */
static __always_inline int relay_reflect(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct iphdr *ip = (void *)(eth + 1);
	struct in6_addr address;
	__u8 mac[ETH_ALEN];
	__be32 word;

	if ((void *)(ip6 + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		word = ip->saddr;
		ip->saddr = ip->daddr;
		ip->daddr = word;
	} else {
		address = ip6->saddr;
		ip6->saddr = ip6->daddr;
		ip6->daddr = address;
	}
	return XDP_TX;
}

int lb_xdp(struct xdp_md *ctx)
{
	if (RELAY == RELAY_ON)
		return relay_on(ctx);
	if (RELAY == RELAY_REFLECT)
		return relay_reflect(ctx);
	if (RELAY == RELAY_GROW && bpf_xdp_adjust_head(ctx, -RELAY_GROWTH))
		return XDP_ABORTED;
	return XDP_PASS;
}
