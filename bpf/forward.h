/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Routing at tc: FIB lookup and redirect, for packets that cannot take the stack because it drops
 * arriving packets with a local source address. Also the redirect back to the device a packet came
 * from.
 */
#ifndef LB_FORWARD_H
#define LB_FORWARD_H

#include "addr.h"
#include "packet.h"
#include "path_mtu.h"
#include "verdict.h"

/* bcc declares this helper with three arguments; the kernel's has four. */
static long (*lb_redirect_neigh)(__u32 ifindex, void *params, int plen,
				 __u64 flags) = (void *)BPF_FUNC_redirect_neigh;

static __always_inline void lb_fib_fill(struct bpf_fib_lookup *fib, struct __sk_buff *skb,
					const struct lb_packet *pkt, const struct lb_addr *daddr)
{
	fib->ifindex = skb->ifindex;
	fib->l4_protocol = pkt->tuple.proto;
	fib->tot_len = lb_wire_len(skb, pkt);
	if (pkt->is_ipv4) {
		fib->family = LB_AF_INET;
		fib->ipv4_src = pkt->tuple.saddr.word[3];
		fib->ipv4_dst = daddr->word[3];
	} else {
		fib->family = LB_AF_INET6;
		__builtin_memcpy(fib->ipv6_src, &pkt->tuple.saddr, sizeof(struct lb_addr));
		__builtin_memcpy(fib->ipv6_dst, daddr, sizeof(struct lb_addr));
	}
}

/*
 * The route of a packet to daddr. Call it before the packet is rewritten, because an ICMP error
 * quotes the original. If the packet is too big, fib->tot_len is the MTU.
 */
static __always_inline int lb_fib_lookup(struct bpf_fib_lookup *fib, struct __sk_buff *skb,
					 const struct lb_packet *pkt, const struct lb_addr *daddr)
{
	int result;

	if (pkt->ttl <= 1)
		return -LB_DROP_TTL_EXCEEDED;
	lb_fib_fill(fib, skb, pkt, daddr);
	result = bpf_fib_lookup(skb, fib, sizeof(*fib), 0);
	if (result == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return -LB_DROP_TOO_BIG;
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH)
		__builtin_memset(fib->dmac, 0, sizeof(fib->dmac));
	else if (result)
		return -LB_DROP_NO_ROUTE;
	return LB_NEXT;
}

/* The TTL that the packet leaves with. fib is filled if the packet is redirected from here. */
static __always_inline __u8 lb_next_ttl(const struct lb_packet *pkt,
					const struct bpf_fib_lookup *fib)
{
	return fib->ifindex ? pkt->ttl - 1 : pkt->ttl;
}

static __always_inline int lb_has_mac(const struct bpf_fib_lookup *fib)
{
	return fib->dmac[0] | fib->dmac[1] | fib->dmac[2] | fib->dmac[3] | fib->dmac[4] |
	       fib->dmac[5];
}

/* The neighbour subsystem fills the link header, but the helper needs room for one. */
static __always_inline int lb_forward_via_neigh(struct __sk_buff *skb, const struct lb_packet *pkt,
						__u32 ifindex)
{
	if (!pkt->l2 && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return -LB_DROP_REWRITE;
	lb_redirect_neigh(ifindex, NULL, 0, 0);
	return LB_REDIRECT;
}

/*
 * Redirects the rewritten packet along the route found; if the MAC address is not known, through
 * the neighbour subsystem.
 */
static __always_inline int lb_forward(struct __sk_buff *skb, const struct lb_packet *pkt,
				      struct bpf_fib_lookup *fib)
{
	__u8 macs[2 * ETH_ALEN];

	if (!pkt->l2 || !lb_has_mac(fib))
		return lb_forward_via_neigh(skb, pkt, fib->ifindex);
	__builtin_memcpy(macs, fib->dmac, ETH_ALEN);
	__builtin_memcpy(macs + ETH_ALEN, fib->smac, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0))
		return -LB_DROP_REWRITE;
	bpf_redirect(fib->ifindex, 0);
	return LB_REDIRECT;
}

/* Sends the packet back: out of the device it came in by, or up the stack if it was leaving. */
static __always_inline int lb_return_to_sender(struct __sk_buff *skb, const struct lb_packet *pkt,
					       int hook)
{
	__u8 macs[2 * ETH_ALEN];

	if (pkt->l2) {
		if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)) ||
		    bpf_skb_store_bytes(skb, 0, macs + ETH_ALEN, ETH_ALEN, 0) ||
		    bpf_skb_store_bytes(skb, ETH_ALEN, macs, ETH_ALEN, 0))
			return -LB_DROP_REWRITE;
	}
	bpf_redirect(skb->ifindex, hook == LB_HOOK_HOST_EGRESS ? BPF_F_INGRESS : 0);
	return LB_REDIRECT;
}

#endif
