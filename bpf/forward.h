/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Routing at tc: FIB lookup and redirect, for packets that cannot take the stack because it drops
 * arriving packets with a local source address. Also the redirect back to the device a packet came
 * from.
 */
#ifndef LB_FORWARD_H
#define LB_FORWARD_H

#include "addr.h"
#include "maps.h"
#include "next_hop.h"
#include "packet.h"
#include "path_mtu.h"
#include "verdict.h"

/* Each network namespace's loopback device, on which the node's own packets come in. */
#define LB_LOOPBACK_IFINDEX 1

/* bcc declares this helper with three arguments; the kernel's has four. */
static long (*lb_redirect_neigh)(__u32 ifindex, void *params, int plen,
				 __u64 flags) = (void *)BPF_FUNC_redirect_neigh;

/*
 * ifindex: the device on which the packet came in. The ports are the packet's; of several next hops,
 * they may choose one (fib_multipath_hash_policy).
 */
static __always_inline void lb_fib_fill(struct bpf_fib_lookup *fib, const struct lb_packet *pkt,
					const struct lb_addr *saddr, const struct lb_addr *daddr,
					__u32 ifindex)
{
	fib->ifindex = ifindex;
	fib->l4_protocol = pkt->tuple.proto;
	fib->sport = pkt->tuple.sport;
	fib->dport = pkt->tuple.dport;
	/* An earlier lookup leaves its route's metric there, which would be the TOS of this one. */
	fib->flowinfo = 0;
	if (pkt->is_ipv4) {
		fib->family = LB_AF_INET;
		fib->ipv4_src = saddr->word[3];
		fib->ipv4_dst = daddr->word[3];
	} else {
		fib->family = LB_AF_INET6;
		__builtin_memcpy(fib->ipv6_src, saddr, sizeof(struct lb_addr));
		__builtin_memcpy(fib->ipv6_dst, daddr, sizeof(struct lb_addr));
	}
}

/*
 * Before Linux 5.12 the lookup ignores tot_len and the MTU of the route: it compares the skb with
 * the device's MTU, does not return that MTU, and lets every GSO packet pass. So use the MTU of the
 * device instead; for a device without our programs it is unknown, and the sender is told the
 * minimum MTU of every link.
 */
static __always_inline int lb_fib_check_mtu(struct bpf_fib_lookup *fib, const struct lb_packet *pkt,
					    __u32 wire_len, int result)
{
	__u32 ifindex = fib->ifindex;
	struct lb_device *device;

	if (result && result != BPF_FIB_LKUP_RET_FRAG_NEEDED && result != BPF_FIB_LKUP_RET_NO_NEIGH)
		return result;
	device = lb_devices.lookup(&ifindex);
	if (device && device->mtu) {
		fib->tot_len = device->mtu;
		return wire_len > device->mtu ? BPF_FIB_LKUP_RET_FRAG_NEEDED : result;
	}
	fib->tot_len = pkt->is_ipv4 ? LB_IPV4_LEAST_MTU : LB_IPV6_LEAST_MTU;
	return result;
}

/* is_any_size: the packet may be too big, as the stack will fragment it. */
static __always_inline int lb_fib_result(int result, int is_any_size)
{
	if (result == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return is_any_size ? LB_NEXT : -LB_DROP_TOO_BIG;
	if (result && result != BPF_FIB_LKUP_RET_NO_NEIGH)
		return -LB_DROP_NO_ROUTE;
	return LB_NEXT;
}

/*
 * Linux forwards IPv6 if the sysctl for all devices allows it; this helper also checks the sysctl
 * of the incoming device, which some network plugins set to 0. Then use the route of the node's own
 * packets: for the loopback device the sysctl for all devices counts.
 */
static __always_inline int lb_fib_find(struct bpf_fib_lookup *fib, void *ctx, __u32 len, __u64 now)
{
	int result = lb_next_hop_find(fib, ctx, len, now);

	if (result != BPF_FIB_LKUP_RET_FWD_DISABLED || fib->family != LB_AF_INET6)
		return result;
	fib->ifindex = LB_LOOPBACK_IFINDEX;
	return lb_next_hop_find(fib, ctx, len, now);
}

/*
 * wire_len: of the resulting packet. If it is too big, fib->tot_len is the MTU, and fib->ifindex
 * may be unchanged.
 */
static __always_inline int lb_fib_ask(struct bpf_fib_lookup *fib, void *ctx,
				      const struct lb_packet *pkt, __u32 wire_len)
{
	int result = lb_fib_find(fib, ctx, LB_HAS_FIB_MTU ? wire_len : 0, pkt->now);

	if (!LB_HAS_FIB_MTU)
		result = lb_fib_check_mtu(fib, pkt, wire_len, result);
	return lb_fib_result(result, 0);
}

/*
 * The route of a packet to the destination of `to`, before its source changes. Call it before the
 * packet is rewritten, because an ICMP error quotes the original.
 */
static __always_inline int lb_fib_lookup(struct bpf_fib_lookup *fib, void *ctx,
					 const struct lb_packet *pkt, const struct lb_tuple *to)
{
	if (pkt->ttl <= 1)
		return -LB_DROP_TTL_EXCEEDED;
	lb_fib_fill(fib, pkt, &pkt->tuple.saddr, &to->daddr, pkt->ifindex);
	fib->dport = to->dport;
	return lb_fib_ask(fib, ctx, pkt, lb_wire_len(pkt));
}

/*
 * For a reply that the stack sends out of another device than ifindex, on which its request
 * arrived. The stack has routed it from the backend's address; it leaves with the frontend's, which
 * rules may route differently. So look up the route of a packet that this node itself sends from
 * that address. If it leads to ifindex, fib is filled and the reply is redirected; otherwise
 * fib->ifindex is 0 and the stack's choice stands.
 */
static __always_inline int lb_fib_lookup_reply(struct bpf_fib_lookup *fib, void *ctx,
					       const struct lb_packet *pkt,
					       const struct lb_tuple *to, __u32 ifindex)
{
	int verdict;

	lb_fib_fill(fib, pkt, &to->saddr, &to->daddr, LB_LOOPBACK_IFINDEX);
	fib->sport = to->sport;
	fib->dport = to->dport;
	verdict = lb_fib_ask(fib, ctx, pkt, lb_wire_len(pkt));
	if (verdict == -LB_DROP_TOO_BIG)
		return verdict;
	if (verdict || fib->ifindex != ifindex)
		fib->ifindex = 0;
	return LB_NEXT;
}

/* lb_fib_lookup(), but the stack routes packets that are too big and may be fragmented. */
static __always_inline int lb_fib_lookup_any_size(struct bpf_fib_lookup *fib, void *ctx,
						  struct lb_packet *pkt, const struct lb_tuple *to)
{
	int result = lb_fib_lookup(fib, ctx, pkt, to);

	if (result != -LB_DROP_TOO_BIG || !(pkt->routing & LB_MAY_FRAGMENT))
		return result;
	pkt->routing |= LB_VIA_STACK;
	lb_fib_fill(fib, pkt, &pkt->tuple.saddr, &to->daddr, pkt->ifindex);
	fib->dport = to->dport;
	return lb_fib_result(lb_fib_find(fib, ctx, 0, pkt->now), 1);
}

/* The TTL that the packet leaves with. fib is filled if the packet is redirected from here. */
static __always_inline __u8 lb_next_ttl(const struct lb_packet *pkt,
					const struct bpf_fib_lookup *fib)
{
	return fib->ifindex ? pkt->ttl - 1 : pkt->ttl;
}

/*
 * Redirects the rewritten packet along the route found. The neighbour subsystem fills the link
 * header, for which the helper needs room. It also probes a neighbour that has long been silent;
 * with the MAC address of the FIB lookup, a router that got a new one would never be found again.
 */
static __always_inline int lb_forward(struct __sk_buff *skb, const struct lb_packet *pkt,
				      const struct bpf_fib_lookup *fib)
{
	struct bpf_redir_neigh next_hop = { .nh_family = fib->family };

	if (!pkt->l2 && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return -LB_DROP_REWRITE;
	__builtin_memcpy(next_hop.ipv6_nh, fib->ipv6_dst, sizeof(next_hop.ipv6_nh));
	lb_redirect_neigh(fib->ifindex, &next_hop, sizeof(next_hop), 0);
	return LB_REDIRECT;
}

/* Swaps the MAC addresses, if the device has any. l2: length of the link header. */
static __always_inline int lb_swap_macs(struct __sk_buff *skb, int l2)
{
	__u8 macs[2 * ETH_ALEN];

	if (!l2)
		return 0;
	return bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)) ||
	       bpf_skb_store_bytes(skb, 0, macs + ETH_ALEN, ETH_ALEN, 0) ||
	       bpf_skb_store_bytes(skb, ETH_ALEN, macs, ETH_ALEN, 0);
}

/* Sends the packet back: out of the device it came in on, or up the stack if it was leaving. */
static __always_inline int lb_return_to_sender(struct __sk_buff *skb, int l2, int hook)
{
	if (lb_swap_macs(skb, l2))
		return -LB_DROP_REWRITE;
	bpf_redirect(skb->ifindex, hook == LB_HOOK_HOST_EGRESS ? BPF_F_INGRESS : 0);
	return LB_REDIRECT;
}

#endif
