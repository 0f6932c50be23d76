/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The way of a packet through tc: known flow, else new flow, else not ours; and the one exit. */
#ifndef LB_PATH_H
#define LB_PATH_H

/* What an entry says, copied out: tracking may move the entry to the other table. */
struct lb_action {
	struct lb_tuple to;
	__u32 ifindex;
	__u8 direction;
	__u8 flags;
};

/* Rewritten and sent on as its entry says. fib is filled when the packet leaves from here. */
static __always_inline int lb_act(struct __sk_buff *skb, struct lb_packet *pkt,
				  const struct lb_action *action, struct bpf_fib_lookup *fib)
{
	int leaves = fib->ifindex != 0;

	if (lb_rewrite(skb, pkt, &action->to))
		return -LB_DROP_REWRITE;
	if (action->flags & LB_CT_HAIRPIN)
		return lb_return_to_sender(skb, pkt);
	if (leaves)
		return lb_forward(skb, pkt, fib);
	if (action->ifindex && action->ifindex != skb->ifindex) {
		lb_redirect_neigh(action->ifindex, NULL, 0, 0);
		return LB_REDIRECT;
	}
	return LB_PASS;
}

/* Masqueraded packets leave straight from tc, both ways; the host's own only on their way out. */
static __always_inline int lb_leaves_from_tc(const struct lb_conntrack *entry)
{
	if (entry->flags & LB_CT_HAIRPIN)
		return 0;
	if (entry->flags & LB_CT_TO_HOST)
		return entry->direction == LB_DIR_ORIGINAL;
	return entry->flags & LB_CT_SNAT;
}

/* A flow lives only as a pair; the LRU may have taken one half. */
static __always_inline int lb_has_lost_reply(const struct lb_packet *pkt,
					     const struct lb_conntrack *entry)
{
	struct lb_tuple peer;

	if (entry->direction != LB_DIR_ORIGINAL || entry->state & LB_CT_ESTABLISHED)
		return 0;
	return !lb_conntrack_peer(&pkt->tuple, entry, &peer);
}

/* LB_NEXT: no entry for this packet at this hook. */
static __always_inline int lb_known_flow(struct __sk_buff *skb, struct lb_packet *pkt, int hook,
					 struct bpf_fib_lookup *fib)
{
	struct lb_conntrack *entry = lb_conntrack_lookup(&pkt->tuple);
	struct lb_action action;
	int verdict;

	if (!entry || entry->hook != hook)
		return LB_NEXT;
	if (!lb_conntrack_is_current(pkt, entry) || lb_has_lost_reply(pkt, entry))
		return LB_NEXT;
	if (lb_leaves_from_tc(entry)) {
		verdict = lb_fib_lookup(fib, skb, pkt, &entry->to.daddr);
		if (verdict)
			return verdict;
	}
	action.to = entry->to;
	action.ifindex = entry->ifindex;
	action.direction = entry->direction;
	action.flags = entry->flags;
	lb_conntrack_track(pkt, entry);
	return lb_act(skb, pkt, &action, fib);
}

static __always_inline int lb_service_route(struct __sk_buff *skb, const struct lb_packet *pkt,
					    const struct lb_place *place,
					    const struct lb_choice *choice, struct lb_flow *flow,
					    struct bpf_fib_lookup *fib)
{
	if (place->hook == LB_HOOK_POD_INGRESS)
		return lb_service_from_pod(pkt, flow);
	if (place->hook == LB_HOOK_HOST_INGRESS)
		return lb_service_from_outside(skb, pkt, choice, flow, fib);
	return lb_service_from_host(skb, pkt, choice, flow, fib);
}

static __always_inline int lb_new_flow(struct __sk_buff *skb, struct lb_packet *pkt,
				       const struct lb_place *place, __u64 flags,
				       struct bpf_fib_lookup *fib)
{
	struct lb_choice choice = {};
	struct lb_match match = {};
	struct lb_flow flow = {};
	struct lb_action action;
	int verdict;

	if (pkt->tuple.proto == IPPROTO_TCP && !lb_ct_is_syn(pkt))
		return LB_PASS;
	verdict = lb_service_match(skb, pkt, flags, &match);
	if (verdict)
		return verdict;
	verdict = lb_service_select(pkt, &match, place, &flow, &choice);
	if (verdict)
		return verdict;
	verdict = lb_service_route(skb, pkt, place, &choice, &flow, fib);
	if (verdict)
		return verdict;
	verdict = lb_conntrack_create(pkt, &flow);
	if (verdict)
		return verdict;
	lb_count_connection(match.index, choice.index);
	action.to = flow.to;
	action.ifindex = 0;
	action.direction = LB_DIR_ORIGINAL;
	action.flags = flow.flags;
	return lb_act(skb, pkt, &action, fib);
}

/* Counts and answers what is not let through. */
static __always_inline int lb_tc_exit(struct __sk_buff *skb, const struct lb_packet *pkt,
				      int verdict, __u32 mtu)
{
	if (verdict == LB_REDIRECT)
		return TC_ACT_REDIRECT;
	if (verdict >= 0)
		return TC_ACT_UNSPEC;
	lb_count_drop_reason(-verdict);
	if (lb_reject(skb, pkt, -verdict, mtu) == LB_REDIRECT)
		return TC_ACT_REDIRECT;
	return TC_ACT_SHOT;
}

/* Packets to one of our addresses: requests, and replies to what was masqueraded. */
static __always_inline int lb_to_our_address(struct __sk_buff *skb, struct lb_packet *pkt,
					     const struct lb_place *place,
					     struct bpf_fib_lookup *fib)
{
	int known;
	__u64 flags = lb_addr_flags_of(&pkt->tuple.daddr, &known);
	int verdict = LB_NEXT;

	if (!known)
		return LB_PASS;
	if (place->hook != LB_HOOK_HOST_EGRESS)
		verdict = lb_known_flow(skb, pkt, place->hook, fib);
	if (verdict)
		return verdict;
	return lb_new_flow(skb, pkt, place, flags, fib);
}

static __always_inline int lb_tc_request(struct __sk_buff *skb, const struct lb_place *place,
					 int l2)
{
	struct bpf_fib_lookup fib = {};
	struct lb_packet pkt;
	int verdict = lb_parse(skb, &pkt, l2);

	if (verdict)
		return TC_ACT_UNSPEC;
	verdict = lb_to_our_address(skb, &pkt, place, &fib);
	return lb_tc_exit(skb, &pkt, verdict, fib.tot_len);
}

/* What leaves: replies of backends; and, on a host device, what the host itself sends to a VIP. */
static __always_inline int lb_tc_reply(struct __sk_buff *skb, const struct lb_place *place, int l2)
{
	struct bpf_fib_lookup fib = {};
	struct lb_packet pkt;
	int verdict = lb_parse(skb, &pkt, l2);

	if (verdict)
		return TC_ACT_UNSPEC;
	verdict = lb_known_flow(skb, &pkt, place->hook, &fib);
	if (!verdict && place->is_local_source && skb->sk)
		verdict = lb_to_our_address(skb, &pkt, place, &fib);
	return lb_tc_exit(skb, &pkt, verdict, fib.tot_len);
}

#endif
