/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The path MTU between nodes: a router that cannot forward a tunneled packet tells this node, which
 * then tells the clients of packets that would not fit.
 */
#ifndef LB_TUNNEL_MTU_H
#define LB_TUNNEL_MTU_H

#include "clock.h"
#include "icmp.h"
#include "maps.h"
#include "packet.h"
#include "path_mtu.h"
#include "tunnel_end.h"

/* The MTU that an error reports; 0 if it reports none. */
static __always_inline __u32 lb_icmp_mtu(struct __sk_buff *skb, const struct lb_packet *pkt)
{
	__u32 least = pkt->is_ipv4 ? LB_IPV4_LEAST_MTU : LB_IPV6_LEAST_MTU;
	struct lb_icmp icmp;
	__u32 mtu;

	if (bpf_skb_load_bytes(skb, pkt->l4, &icmp, sizeof(icmp)))
		return 0;
	if (pkt->is_ipv4 ? icmp.type != ICMP_DEST_UNREACH || icmp.code != ICMP_FRAG_NEEDED :
			   icmp.type != ICMPV6_PKT_TOOBIG)
		return 0;
	mtu = bpf_ntohl(icmp.rest);
	return mtu > least ? mtu : least;
}

/*
 * Notes the MTU if the error is about a packet that this node has sent in a tunnel. The key, which
 * routers quote with it, proves that.
 */
static __always_inline void lb_tunnel_note_mtu(struct __sk_buff *skb, const struct lb_packet *pkt,
					       const struct lb_packet *quote)
{
	struct lb_path_mtu told = { .mtu = lb_icmp_mtu(skb, pkt) };
	struct lb_addr node = quote->tuple.daddr;
	struct lb_tunnel *tunnel = LB_SCRATCH(tunnel);
	__u32 known;

	if (!tunnel || tunnel->is_open || !told.mtu || quote->tuple.proto != IPPROTO_UDP ||
	    !lb_filter_is_dsr_port(quote->tuple.dport) || !lb_nodes.lookup(&node) ||
	    bpf_skb_load_bytes(skb, quote->l4 + sizeof(struct udphdr), &tunnel->geneve,
			       sizeof(tunnel->geneve)) ||
	    !lb_geneve_is_ours(&tunnel->geneve) || !lb_geneve_has_key(&tunnel->geneve))
		return;
	known = lb_tunnel_mtu(&node);
	told.told = lb_now();
	if (!known || told.mtu < known)
		lb_tunnel_mtus.update(&node, &told);
}

#endif
