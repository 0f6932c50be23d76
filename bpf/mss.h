/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The MSS that the pod of a tunneled connection offers its client, reduced so that the client's
 * segments fit into the tunnel to the pod's node without an ICMP error, which might be filtered.
 */
#ifndef LB_MSS_H
#define LB_MSS_H

#include "csum.h"
#include "maps.h"
#include "packet.h"
#include "tunnel.h"

#define LB_TCP_OPTION_END 0
#define LB_TCP_OPTION_NOP 1
#define LB_TCP_OPTION_MSS 2
/* Options before the MSS, which all stacks write first. */
#define LB_TCP_OPTIONS_SKIPPED 4

struct lb_mss_option {
	__u8 kind;
	__u8 length;
	__be16 mss;
};

/* The TCP payload that leaves room for the tunnel header; 0 if the MTU is unknown. */
static __always_inline __u32 lb_mss_in_tunnel(__u32 ifindex, int is_ipv4)
{
	__u32 headers = lb_tunnel_len(is_ipv4) + lb_ip_len(is_ipv4) + sizeof(struct tcphdr);
	struct lb_device *device = lb_devices.lookup(&ifindex);

	return device && device->mtu > headers ? device->mtu - headers : 0;
}

/* offset: of the option. */
static __always_inline void lb_mss_store(struct __sk_buff *skb, const struct lb_packet *pkt,
					 __u32 offset, __be16 old, __be16 new)
{
	int is_odd = (offset - pkt->l4) & 1;

	bpf_skb_store_bytes(skb, offset + offsetof(struct lb_mss_option, mss), &new, sizeof(new),
			    0);
	bpf_l4_csum_replace(skb, lb_csum_offset(pkt), is_odd ? bpf_ntohs(old) : old,
			    is_odd ? bpf_ntohs(new) : new, sizeof(new));
}

static __always_inline void lb_mss_clamp(struct __sk_buff *skb, const struct lb_packet *pkt)
{
	__u32 end = pkt->l4 + pkt->header_len;
	__u32 offset = pkt->l4 + sizeof(struct tcphdr);
	struct lb_mss_option option;
	__u32 most;

	if (pkt->tuple.proto != IPPROTO_TCP || !(pkt->tcp_flags & LB_TCP_SYN))
		return;
	most = lb_mss_in_tunnel(skb->ifindex, pkt->is_ipv4);
	for (int skipped = 0; skipped <= LB_TCP_OPTIONS_SKIPPED && most; skipped++) {
		if (offset + sizeof(option) > end ||
		    bpf_skb_load_bytes(skb, offset, &option, sizeof(option)) ||
		    option.kind == LB_TCP_OPTION_END)
			return;
		if (option.kind == LB_TCP_OPTION_MSS) {
			if (bpf_ntohs(option.mss) > most)
				lb_mss_store(skb, pkt, offset, option.mss, bpf_htons(most));
			return;
		}
		offset += option.kind == LB_TCP_OPTION_NOP ? 1 : option.length;
	}
}

#endif
