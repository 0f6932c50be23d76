/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * ServiceCIDR: packets that leave the node for an address of a ServiceCIDR that no Service has are
 * dropped, because they have nowhere to go. This happens at egress, after anything else on this
 * node that translates addresses.
 */
#ifndef LB_SERVICE_CIDR_H
#define LB_SERVICE_CIDR_H

#include "addr.h"
#include "frontend.h"
#include "maps.h"
#include "parse.h"

static __always_inline int lb_service_cidr_has_ipv4(const struct lb_service_nets *nets, __be32 addr)
{
	for (int i = 0; i < LB_SERVICE_NETS; i++) {
		if (!nets->ipv4[i].mask)
			return 0;
		if (!((addr ^ nets->ipv4[i].net) & nets->ipv4[i].mask))
			return 1;
	}
	return 0;
}

static __always_inline int lb_net6_has(const struct lb_net6 *net, const struct lb_addr *addr)
{
	for (int i = 0; i < 4; i++) {
		if ((addr->word[i] ^ net->net.word[i]) & net->mask.word[i])
			return 0;
	}
	return 1;
}

static __always_inline int lb_service_cidr_has_ipv6(const struct lb_service_nets *nets,
						    const struct lb_addr *addr)
{
	for (int i = 0; i < LB_SERVICE_NETS; i++) {
		if (!nets->ipv6[i].mask.word[0])
			return 0;
		if (lb_net6_has(&nets->ipv6[i], addr))
			return 1;
	}
	return 0;
}

/* Fills daddr. Returns whether it is in a ServiceCIDR. */
static __always_inline int lb_service_cidr_has_daddr(struct __sk_buff *skb, int l2,
						     struct lb_addr *daddr)
{
	void *place = (void *)(long)skb->data + l2;
	void *end = (void *)(long)skb->data_end;
	struct lb_service_nets *nets;
	int zero = 0;

	nets = lb_service_nets.lookup(&zero);
	if (!nets)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (place + sizeof(struct iphdr) > end)
			return 0;
		lb_addr_from_ipv4(daddr, ((struct iphdr *)place)->daddr);
		return lb_service_cidr_has_ipv4(nets, daddr->word[3]);
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || place + sizeof(struct ipv6hdr) > end)
		return 0;
	__builtin_memcpy(daddr, &((struct ipv6hdr *)place)->daddr, sizeof(*daddr));
	return lb_service_cidr_has_ipv6(nets, daddr);
}

/*
 * is_own: sent by a process of this node; such flows are translated at egress. They may continue
 * after their Service is gone, as long as the address is in lb_addrs.
 */
static __always_inline int lb_is_unused_vip(struct __sk_buff *skb, int l2, int is_own)
{
	struct lb_addr daddr;

	if (skb->vlan_present && skb->vlan_tci & LB_VLAN_ID)
		return 0;
	if (!lb_service_cidr_has_daddr(skb, l2, &daddr))
		return 0;
	return is_own ? !lb_addrs.lookup(&daddr) : !lb_addr_flags_of(&daddr);
}

#endif
