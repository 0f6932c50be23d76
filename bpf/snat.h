/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Both entries of a new flow, and the source port of one that is masqueraded. The reply's tuple is
 * the reservation: inserting it fails when another flow has it.
 */
#ifndef LB_SNAT_H
#define LB_SNAT_H

/* Host byte order; uniformly random over both ranges, fully random as kube-proxy's masquerade. */
static __always_inline __u16 lb_snat_random_port(const struct lb_settings *settings)
{
	__u32 first = settings->snat_ports[0].last - settings->snat_ports[0].first + 1;
	__u32 second = settings->snat_ports[1].last - settings->snat_ports[1].first + 1;
	__u32 n = bpf_get_prandom_u32() % (first + second);

	if (n < first)
		return settings->snat_ports[0].first + n;
	return settings->snat_ports[1].first + n - first;
}

/* Takes the reply tuple, also from a flow that has ended. Returns 0 when it is taken. */
static __always_inline int lb_snat_take(struct lb_tuple *reply, struct lb_conntrack *entry)
{
	struct lb_conntrack *old;
	struct lb_tuple peer;

	if (reply->proto == IPPROTO_TCP && lb_conntrack.lookup(reply))
		return -1;
	if (!lb_ct_short.insert(reply, entry))
		return 0;
	old = lb_ct_short.lookup(reply);
	if (!old || !(old->state & LB_CT_CLOSED))
		return -1;
	lb_conntrack_peer_key(&peer, old);
	lb_ct_short.delete(&peer);
	return lb_ct_short.update(reply, entry);
}

/* Fills reply->dport. */
static __always_inline int lb_snat_reserve(struct lb_tuple *reply, struct lb_conntrack *entry)
{
	struct lb_settings *settings;
	int zero = 0;

	settings = lb_settings.lookup(&zero);
	if (!settings)
		return -LB_DROP_SNAT_PORTS;
	for (int i = 0; i < LB_SNAT_ATTEMPTS; i++) {
		reply->dport = bpf_htons(lb_snat_random_port(settings));
		if (!lb_snat_take(reply, entry))
			return LB_NEXT;
	}
	return -LB_DROP_SNAT_PORTS;
}

/*
 * Makes both entries of the flow; fills flow->to.sport when it is masqueraded. The reply comes
 * first: an original without its reply would send packets whose answers nobody reverses.
 */
static __always_inline int lb_conntrack_create(struct lb_packet *pkt, struct lb_flow *flow)
{
	struct lb_conntrack entry;
	struct lb_tuple reply;
	int verdict = LB_NEXT;

	lb_tuple_reverse(&reply, &flow->to);
	lb_conntrack_fill(&entry, flow, bpf_ktime_get_ns());
	lb_conntrack_fill_reply(&entry, flow, &pkt->tuple);
	if (flow->flags & LB_CT_SNAT)
		verdict = lb_snat_reserve(&reply, &entry);
	else if (lb_ct_short.update(&reply, &entry))
		verdict = -LB_DROP_CONNTRACK_FULL;
	if (verdict)
		return verdict;
	flow->to.sport = reply.dport;
	lb_conntrack_fill(&entry, flow, entry.created);
	entry.state = LB_CT_SYN;
	entry.packets = 1;
	if (lb_ct_short.update(&pkt->tuple, &entry)) {
		lb_ct_short.delete(&reply);
		return -LB_DROP_CONNTRACK_FULL;
	}
	return LB_NEXT;
}

#endif
