/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wire without a network card: lb_xdp sends the same frame again and again, or one from many
 * sources, or drops and counts what comes back. LIVE: which of it. There is no skb on the way.
 */
#include "config.h"
#include "maps.h"
#include "types.h"

#define LIVE_SEND 0
#define LIVE_COUNT 1
#define LIVE_REFLECT 2
#define LIVE_FLOOD 3

#define LIVE_SIZE 80

struct live {
	__u32 bytes[LIVE_SIZE / 4];
	__u32 ifindex;
};

LB_MAP("array", int, struct live, lb_live, 1);
LB_MAP("percpu_array", int, __u64, lb_live_count, 1);

/* The last three bytes of the address, and the port. Programs that only translate check no sums. */
static __always_inline void live_from_anybody(__u8 *data)
{
	int is_ipv4 = data[12] == 0x08 && data[13] == 0x00;
	__u32 random = bpf_get_prandom_u32();
	__u8 *address = data + (is_ipv4 ? 27 : 35), *port = data + (is_ipv4 ? 34 : 54);

	address[0] = random;
	address[1] = random >> 8;
	address[2] = random >> 16;
	port[0] = 4 + (random >> 24) / 2;
	port[1] = bpf_get_prandom_u32();
}

static __always_inline int live_send(struct xdp_md *ctx)
{
	__u32 *data = (void *)(long)ctx->data;
	struct live *live;
	int zero = 0;

	live = lb_live.lookup(&zero);
	if (!live || (void *)data + LIVE_SIZE > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(data, live, LIVE_SIZE);
	if (LIVE == LIVE_FLOOD)
		live_from_anybody((void *)data);
	return bpf_redirect(live->ifindex, 0);
}

static __always_inline int live_count(void)
{
	__u64 *count;
	int zero = 0;

	count = lb_live_count.lookup(&zero);
	if (count)
		*count += 1;
	return XDP_DROP;
}

static __always_inline int live_reflect(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	__u8 mac[ETH_ALEN];

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	return XDP_TX;
}

int lb_xdp(struct xdp_md *ctx)
{
	if (LIVE == LIVE_SEND || LIVE == LIVE_FLOOD)
		return live_send(ctx);
	return LIVE == LIVE_COUNT ? live_count() : live_reflect(ctx);
}
