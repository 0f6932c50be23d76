/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Both entries of a new flow, and its source port. The reply's tuple is the reservation: inserting
 * it fails when another flow has it.
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

static __always_inline int lb_snat_is_over(struct lb_packet *pkt, const struct lb_tuple *reply,
					   const struct lb_conntrack *entry)
{
	if (reply->proto == IPPROTO_UDP)
		return lb_conntrack_is_idle(reply, entry, &pkt->peer);
	return entry->state & LB_CT_CLOSED;
}

/* Takes the reply tuple: a free one, its own, or that of a flow which has ended. 0 if it can. */
static __always_inline int lb_snat_take(struct lb_packet *pkt, struct lb_tuple *reply,
					struct lb_conntrack *entry)
{
	struct lb_conntrack *old;

	if (reply->proto == IPPROTO_TCP && lb_conntrack.lookup(reply))
		return -1;
	if (!lb_ct_short.insert(reply, entry))
		return 0;
	old = lb_ct_short.lookup(reply);
	if (!old)
		return -1;
	if (!lb_tuple_is_equal(&old->to, &entry->to)) {
		if (!lb_snat_is_over(pkt, reply, old))
			return -1;
		if (lb_conntrack_peer(reply, old, &pkt->peer))
			lb_ct_short.delete(&pkt->peer);
	}
	return lb_ct_short.update(reply, entry);
}

/* Fills reply->dport. */
static __always_inline int lb_snat_reserve(struct lb_packet *pkt, struct lb_tuple *reply,
					   struct lb_conntrack *entry)
{
	struct lb_settings *settings;
	int zero = 0;

	settings = lb_settings.lookup(&zero);
	if (!settings)
		return -LB_DROP_SNAT_PORTS;
	for (int i = 0; i < LB_SNAT_ATTEMPTS; i++) {
		reply->dport = bpf_htons(lb_snat_random_port(settings));
		if (!lb_snat_take(pkt, reply, entry))
			return LB_NEXT;
	}
	return -LB_DROP_SNAT_PORTS;
}

/* An established flow of the same tuple, which would hide the new entries. */
static __always_inline void lb_conntrack_forget(struct lb_packet *pkt)
{
	struct lb_conntrack *old;

	if (pkt->tuple.proto == IPPROTO_UDP)
		return;
	old = lb_conntrack.lookup(&pkt->tuple);
	if (!old)
		return;
	if (lb_conntrack_peer(&pkt->tuple, old, &pkt->peer))
		lb_conntrack.delete(&pkt->peer);
	lb_conntrack.delete(&pkt->tuple);
}

/*
 * Makes both entries of the flow and fills flow->to.sport: another port when it is masqueraded, or
 * when the client has a flow from this port to the backend already, by another frontend. The reply
 * comes first: an original without its reply would send packets whose answers nobody reverses.
 */
static __always_inline int lb_conntrack_create(struct lb_packet *pkt, struct lb_flow *flow)
{
	struct lb_conntrack *entry;
	struct lb_tuple reply;
	int verdict = LB_NEXT;
	int zero = 0;

	entry = lb_ct_scratch.lookup(&zero);
	if (!entry)
		return -LB_DROP_CONNTRACK_FULL;
	lb_conntrack_forget(pkt);
	lb_tuple_reverse(&reply, &flow->to);
	lb_conntrack_fill(entry, flow, bpf_ktime_get_ns());
	lb_conntrack_fill_reply(entry, flow, &pkt->tuple);
	if (flow->flags & LB_CT_SNAT || lb_snat_take(pkt, &reply, entry))
		verdict = lb_snat_reserve(pkt, &reply, entry);
	if (verdict)
		return verdict;
	flow->to.sport = reply.dport;
	lb_conntrack_fill(entry, flow, entry->created);
	entry->state = LB_CT_SYN;
	entry->packets = 1;
	entry->bytes = pkt->len;
	if (lb_ct_short.update(&pkt->tuple, entry)) {
		lb_ct_short.delete(&reply);
		return -LB_DROP_CONNTRACK_FULL;
	}
	return LB_NEXT;
}

#endif
