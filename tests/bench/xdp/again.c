/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that begin each run with the same frame, so that one call of the kernel can run them a
 * million times. AGAIN: what is done with it.
 */
#include "path.h"
#include "xdp_path.h"

#define AGAIN_NOTHING 0
#define AGAIN_REFLECT 1
#define AGAIN_TRANSLATE 2

#define AGAIN_SIZE 80

struct again {
	__u32 bytes[AGAIN_SIZE / 4];
};

LB_MAP("array", int, struct again, lb_again, 1);

/* What a balancer cannot do without: both ends of the link and of the network change places. */
static __always_inline int again_reflect(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	__u8 mac[ETH_ALEN];
	__be32 address;

	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	address = ip->saddr;
	ip->saddr = ip->daddr;
	ip->daddr = address;
	return XDP_TX;
}

int lb_xdp(struct xdp_md *ctx)
{
	__u32 *data = (void *)(long)ctx->data;
	struct again *again;
	int zero = 0;

	again = lb_again.lookup(&zero);
	if (!again || (void *)data + AGAIN_SIZE > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__builtin_memcpy(data, again, AGAIN_SIZE);
	if (AGAIN == AGAIN_REFLECT)
		return again_reflect(ctx);
	return AGAIN == AGAIN_TRANSLATE ? lb_xdp_request(ctx) : XDP_PASS;
}

int lb_host_ingress(struct __sk_buff *skb)
{
	struct lb_tc_hook at = { .hook = LB_HOOK_HOST_INGRESS };
	struct again *again;
	int zero = 0;

	again = lb_again.lookup(&zero);
	if (!again || bpf_skb_store_bytes(skb, 0, again, AGAIN_SIZE, 0))
		return TC_ACT_SHOT;
	return AGAIN == AGAIN_TRANSLATE ? lb_tc_request(skb, &at, ETH_HLEN) : TC_ACT_UNSPEC;
}
