/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Packets at XDP: from bytes to struct lb_packet, the rewrite, and which of them are sent from
 * there. There is no skb, so everything is read and written in place. A step that cannot go on
 * returns -enum lb_xdp_result, and the packet continues unchanged to tc.
 */
#ifndef LB_XDP_PACKET_H
#define LB_XDP_PACKET_H

#include "clock.h"
#include "csum.h"
#include "filter.h"
#include "forward.h"
#include "maps.h"
#include "masquerade.h"
#include "packet.h"
#include "parse.h"
#include "transport.h"
#include "tunnel.h"
#include "verdict.h"

#if LB_HAS_XDP_FRAGS
/* bcc 0.26 does not declare it. */
static __u64 (*lb_xdp_buff_len)(struct xdp_md *ctx) = (void *)BPF_FUNC_xdp_get_buff_len;
#endif

/* The length including all buffers of the frame. */
static __always_inline __u32 lb_xdp_len(struct xdp_md *ctx)
{
#if LB_HAS_XDP_FRAGS
	return lb_xdp_buff_len(ctx);
#else
	return ctx->data_end - ctx->data;
#endif
}

/* Frames that are not IP, or have a VLAN tag, are left alone. */
static __always_inline int lb_xdp_parse_ip(struct xdp_md *ctx, struct lb_cursor *cur,
					   struct lb_packet *pkt)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	cur->pos = eth + 1;
	cur->end = (void *)(long)ctx->data_end;
	if (cur->pos > cur->end)
		return LB_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		return lb_parse_ipv4(cur, pkt);
	if (eth->h_proto == bpf_htons(ETH_P_IPV6))
		return lb_parse_ipv6(cur, pkt);
	return LB_PASS;
}

/* cur: at the transport header of a packet without IP options or extension headers. */
static __always_inline int lb_xdp_parse_transport(struct xdp_md *ctx, struct lb_cursor *cur,
						  struct lb_packet *pkt)
{
	if (pkt->fragment)
		return -LB_XDP_FRAGMENT;
	if (!lb_is_plain(pkt) || (!pkt->is_ipv4 && lb_is_extension(pkt->tuple.proto)))
		return -LB_XDP_HEADER;
	if (pkt->tuple.proto != IPPROTO_TCP && pkt->tuple.proto != IPPROTO_UDP)
		return -LB_XDP_PROTOCOL;
	if (pkt->len > lb_xdp_len(ctx) - ETH_HLEN || lb_parse_l4(cur, pkt) ||
	    !lb_is_complete(cur, pkt))
		return -LB_XDP_HEADER;
	return LB_NEXT;
}

/* Whether a packet to a node address may be for a NodePort, or a reply of a masqueraded flow. */
static __always_inline int lb_xdp_may_be_for_node(const struct lb_packet *pkt)
{
	const struct lb_tuple *tuple = &pkt->tuple;

	return lb_filter_flags(tuple->dport) & LB_ADDR_NODE_PORT ||
	       lb_reply_filter_has(tuple->saddr.word[3], tuple->daddr.word[3], tuple->sport,
				   tuple->dport, LB_HOOK_HOST_INGRESS);
}

/* enum lb_device_flag of a host device. */
static __always_inline __u32 lb_xdp_device_flags(__u32 ifindex)
{
	int i = ifindex % LB_UPLINKS;
	struct lb_uplink *uplink = lb_uplinks.lookup(&i);
	struct lb_device *device;

	if (uplink && uplink->ifindex == ifindex)
		return uplink->flags;
	device = lb_devices.lookup(&ifindex);
	return device ? device->flags : 0;
}

/* mac: of struct lb_uplink or struct lb_device. */
static __always_inline int lb_xdp_is_to(struct xdp_md *ctx, const __u8 *mac)
{
	const __u16 *target = (void *)(long)ctx->data;
	const __u16 *own = (void *)mac;

	if ((void *)target + ETH_ALEN > (void *)(long)ctx->data_end)
		return 0;
	return !((target[0] ^ own[0]) | (target[1] ^ own[1]) | (target[2] ^ own[2]));
}

/*
 * Whether the frame is for this device: a promiscuous one also gets others' frames, and the stack
 * drops those.
 */
static __always_inline int lb_xdp_is_for_device(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex;
	int i = ifindex % LB_UPLINKS;
	struct lb_uplink *uplink = lb_uplinks.lookup(&i);
	struct lb_device *device;

	if (uplink && uplink->ifindex == ifindex)
		return lb_xdp_is_to(ctx, uplink->mac);
	device = lb_devices.lookup(&ifindex);
	return device && lb_xdp_is_to(ctx, device->mac);
}

/* LB_PASS: it is not for a Service, as the early filter says, or not for this device. */
static __always_inline int lb_xdp_parse(struct xdp_md *ctx, struct lb_packet *pkt)
{
	struct lb_cursor cur;
	int verdict, flags;

	__builtin_memset(pkt, 0, sizeof(*pkt));
	if (lb_xdp_parse_ip(ctx, &cur, pkt))
		return LB_PASS;
	flags = lb_filter_flags_of(&pkt->tuple.daddr);
	if (!(flags & (LB_ADDR_CLUSTER_IP | LB_ADDR_EXTERNAL | LB_ADDR_NODE)) ||
	    !lb_xdp_is_for_device(ctx))
		return LB_PASS;
	pkt->now = lb_now();
	pkt->ifindex = ctx->ingress_ifindex;
	pkt->segs = 1;
	pkt->l2 = ETH_HLEN;
	pkt->l3 = ETH_HLEN;
	pkt->l4 += ETH_HLEN;
	verdict = lb_xdp_parse_transport(ctx, &cur, pkt);
	if (!verdict && !(flags & (LB_ADDR_CLUSTER_IP | LB_ADDR_EXTERNAL)) &&
	    !lb_xdp_may_be_for_node(pkt))
		return LB_PASS;
	return verdict;
}

/* The checksum of TCP or UDP; NULL if it is not in the first buffer. */
static __always_inline __sum16 *lb_xdp_csum(struct xdp_md *ctx, const struct lb_packet *pkt,
					    int is_ipv4)
{
	int offset = pkt->tuple.proto == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
						       offsetof(struct udphdr, check);
	__sum16 *csum = (void *)(long)ctx->data + ETH_HLEN + lb_ip_len(is_ipv4) + offset;

	return (void *)(csum + 1) > (void *)(long)ctx->data_end ? NULL : csum;
}

/*
 * Whether the sender, a machine or namespace on this host, has left the checksum to a device: then
 * it is the sum of the pseudo header alone. One in 65,535 complete checksums looks the same.
 */
static __always_inline int lb_xdp_is_csum_partial(struct xdp_md *ctx, const struct lb_packet *pkt)
{
	__sum16 *csum = lb_xdp_csum(ctx, pkt, pkt->is_ipv4);
	__u64 sum = lb_csum_of_addresses(pkt);

	sum += bpf_htons(pkt->tuple.proto) + bpf_htons(lb_ip_payload(pkt));
	return !csum || *csum == (__u16)~lb_csum_fold(lb_csum_fold_words(sum));
}

/* The checksum of the transport header. addresses: their difference. */
static __always_inline void lb_xdp_rewrite_csum(__sum16 *csum, const struct lb_packet *pkt,
						const struct lb_tuple *to, __u32 addresses)
{
	__u64 diff = addresses;

	if (pkt->tuple.proto == IPPROTO_UDP && !*csum)
		return;
	diff += lb_csum_diff(&pkt->tuple.sport, &to->sport, 2 * sizeof(to->sport));
	*csum = lb_csum_fold(lb_csum_fold_words(diff + (__u16) ~*csum));
	if (pkt->tuple.proto == IPPROTO_UDP && !*csum)
		*csum = 0xffff;
}

static __always_inline void lb_xdp_rewrite_ipv4(struct iphdr *ip, const struct lb_packet *pkt,
						const struct lb_tuple *to, __u32 addresses)
{
	ip->check = lb_csum_ipv4(pkt, pkt->ttl - 1, addresses);
	ip->ttl = pkt->ttl - 1;
	ip->saddr = to->saddr.word[3];
	ip->daddr = to->daddr.word[3];
}

static __always_inline void lb_xdp_rewrite_ipv6(struct ipv6hdr *ip, const struct lb_packet *pkt,
						const struct lb_tuple *to)
{
	ip->hop_limit = pkt->ttl - 1;
	__builtin_memcpy(&ip->saddr, &to->saddr, 2 * sizeof(to->saddr));
}

/* is_ipv4: a constant, so that the verifier knows where the headers end. */
static __always_inline int lb_xdp_rewrite_family(struct xdp_md *ctx, const struct lb_packet *pkt,
						 const struct lb_tuple *to,
						 const struct bpf_fib_lookup *fib, int is_ipv4)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	__be16 *ports = (void *)(eth + 1) + lb_ip_len(is_ipv4);
	__u32 addresses = lb_csum_diff(&pkt->tuple.saddr, &to->saddr, 2 * sizeof(to->saddr));
	__sum16 *csum = lb_xdp_csum(ctx, pkt, is_ipv4);

	if (!csum || (void *)(ports + 2) > (void *)(long)ctx->data_end)
		return -LB_XDP_HEADER;
	lb_xdp_rewrite_csum(csum, pkt, to, addresses);
	if (is_ipv4)
		lb_xdp_rewrite_ipv4((void *)(eth + 1), pkt, to, addresses);
	else
		lb_xdp_rewrite_ipv6((void *)(eth + 1), pkt, to);
	ports[0] = to->sport;
	ports[1] = to->dport;
	__builtin_memcpy(eth->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, fib->smac, ETH_ALEN);
	return LB_NEXT;
}

/* The packet becomes `to`, with the link header of the route in fib, and its TTL reduced by one. */
static __always_inline int lb_xdp_rewrite(struct xdp_md *ctx, const struct lb_packet *pkt,
					  const struct lb_tuple *to,
					  const struct bpf_fib_lookup *fib)
{
	return pkt->is_ipv4 ? lb_xdp_rewrite_family(ctx, pkt, to, fib, 1) :
			      lb_xdp_rewrite_family(ctx, pkt, to, fib, 0);
}

/* Whether the route's device accepts frames from here: this one does, others have a flag. */
static __always_inline int lb_xdp_is_reachable(const struct lb_packet *pkt,
					       const struct bpf_fib_lookup *fib)
{
	return fib->ifindex == pkt->ifindex ||
	       lb_xdp_device_flags(fib->ifindex) & LB_DEVICE_XDP_SENDS;
}

/*
 * The kernel probes a silent neighbour when it sends to it itself. So each CPU passes about one
 * packet per second and next hop to the stack.
 */
static __always_inline int lb_xdp_is_neighbour_due(const struct lb_packet *pkt,
						   const struct bpf_fib_lookup *fib)
{
	int place = (fib->dmac[4] ^ fib->dmac[5] ^ fib->ifindex) % LB_XDP_NEIGHBOURS;
	__u64 *last = lb_xdp_neighbours.lookup(&place);
	__u64 second = pkt->now >> 30;

	if (!last || *last == second)
		return 0;
	*last = second;
	return 1;
}

/* Whether a packet may be sent from here along the route in fib, found by forward.h. */
static __always_inline int lb_xdp_check_route(const struct lb_packet *pkt,
					      const struct bpf_fib_lookup *fib)
{
	__u32 start;
	__u16 end;

	if (!lb_xdp_is_reachable(pkt, fib))
		return -LB_XDP_DEVICE;
	__builtin_memcpy(&start, fib->dmac, sizeof(start));
	__builtin_memcpy(&end, fib->dmac + sizeof(start), sizeof(end));
	if (!(start | end) || lb_xdp_is_neighbour_due(pkt, fib))
		return -LB_XDP_NEIGHBOUR;
	return LB_NEXT;
}

/* is_ipv4: a constant. */
static __always_inline int lb_xdp_wrap_family(struct xdp_md *ctx, const struct lb_packet *pkt,
					      const struct bpf_fib_lookup *fib,
					      const struct lb_settings *settings, int is_ipv4)
{
	struct ethhdr *eth;

	if (bpf_xdp_adjust_head(ctx, -(int)lb_tunnel_len(is_ipv4)))
		return -LB_XDP_HEADER;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) + lb_tunnel_len(is_ipv4) > (void *)(long)ctx->data_end)
		return -LB_XDP_HEADER;
	__builtin_memcpy(eth->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, fib->smac, ETH_ALEN);
	eth->h_proto = bpf_htons(is_ipv4 ? ETH_P_IP : ETH_P_IPV6);
	lb_tunnel_fill(eth + 1, pkt, settings, is_ipv4);
	return LB_NEXT;
}

/* Wraps it into a tunnel to pkt->tunneled.node. Drivers have room for the header. */
static __always_inline int lb_xdp_wrap(struct xdp_md *ctx, const struct lb_packet *pkt,
				       const struct bpf_fib_lookup *fib)
{
	struct lb_settings *settings = lb_settings_get();

	if (!settings)
		return -LB_XDP_HEADER;
	return pkt->is_ipv4 ? lb_xdp_wrap_family(ctx, pkt, fib, settings, 1) :
			      lb_xdp_wrap_family(ctx, pkt, fib, settings, 0);
}

/*
 * A veth does not wake its peer after XDP_TX unless that has an XDP program too (veth_xdp_flush()
 * of Linux 5.13 and later); after a redirect it does.
 */
static __always_inline int lb_xdp_send(const struct lb_packet *pkt,
				       const struct bpf_fib_lookup *fib)
{
	if (fib->ifindex == pkt->ifindex &&
	    !(lb_xdp_device_flags(pkt->ifindex) & LB_DEVICE_XDP_STALLS))
		return XDP_TX;
	return bpf_redirect(fib->ifindex, 0);
}

#endif
