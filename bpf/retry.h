/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Retry, for Services with LB_DESC_RETRY: a connection that its backend does not answer, or refuses,
 * goes to another one when the client repeats its SYN. Until no other is left, the client does not see
 * the refusal. Only an opening flow is retried whose answers this node sees, at tc alone. TCP and
 * SCTP.
 */
#ifndef LB_RETRY_H
#define LB_RETRY_H

#include "conntrack.h"
#include "counters.h"
#include "ejection.h"
#include "flow_record.h"
#include "maps.h"
#include "packet.h"
#include "tuple.h"

/* How many other backends a connection tries. */
#define LB_RETRIES 2

/* The last value of lb_conntrack.tried: no further backend is tried. */
#define LB_TRIED_ALL 255

/* In lb_conntrack.tried, the first backend: its index if the Service has less than 254 of them. */
static __always_inline __u8 lb_retry_mark(__u32 backend)
{
	return 1 + backend % (LB_TRIED_ALL - 1);
}

/* Whether the flow, of either entry, may be retried while its backend has not answered. */
static __always_inline int lb_retry_applies(const struct lb_conntrack *entry)
{
	return entry->desc_flags & LB_DESC_RETRY && !(lb_ct_state(entry) & LB_CT_ESTABLISHED) &&
	       !(entry->flags & (LB_CT_DSR | LB_CT_TUNNELED));
}

/* Whether the backend has answered with anything but a refusal. */
static __always_inline int lb_retry_has_answer(const struct lb_conntrack *reply)
{
	return reply->state & (LB_CT_SYN | LB_CT_ACK);
}

/* Whether a new flow of the client could get a backend that this connection has not tried. */
static __always_inline int lb_retry_has_other(const struct lb_conntrack *original)
{
	const struct lb_range *range;
	struct lb_desc *desc;

	if (original->tried == LB_TRIED_ALL)
		return 0;
	desc = lb_desc_of_frontend(original->frontend, original->service);
	if (!desc || !(desc->flags & LB_DESC_RETRY))
		return 0;
	range = original->hook == LB_HOOK_HOST_INGRESS ? &desc->others : &desc->local;
	return range->count > (original->tried ? 2 : 1);
}

/*
 * Whether a SYN of the client leaves the backend of its flow, which has refused, or has not answered
 * for a second. Then its reply's entry is deleted, so that a late answer does not reach the client, and
 * what follows about the flow is in scratch memory, for lb_retry_recall().
 */
static __always_inline int lb_retry_leave(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *reply;
	struct lb_retry *retry;

	if (!lb_retry_applies(entry) || entry->state & LB_CT_CLOSED)
		return 0;
	if (!(lb_ct_state(entry) & LB_CT_CLOSED) &&
	    (__s64)(pkt->now - entry->created) < (__s64)LB_ANSWER_TIME)
		return 0;
	reply = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);
	retry = LB_SCRATCH(retry);
	if (!reply || !retry || lb_retry_has_answer(reply) || !lb_retry_has_other(entry))
		return 0;
	pkt->routing |= LB_IS_RETRY;
	retry->failed = 1 + entry->backend;
	retry->first = entry->tried;
	retry->tried = entry->tried ? LB_TRIED_ALL : lb_retry_mark(entry->backend);
	lb_flow_end(pkt, entry, reply, LB_END_RETRIED);
	if (lb_conntrack_delete(&pkt->reverse, 0, 0))
		lb_flow_end_cancel();
	return 1;
}

/* Has the new flow of a packet know what lb_retry_leave() has said about that; for struct lb_opening. */
static __always_inline const struct lb_retry *
lb_retry_recall(const struct lb_packet *pkt, const struct lb_desc *desc, struct lb_flow *flow)
{
	struct lb_retry *said;

	if (desc->flags & LB_DESC_RETRY && pkt->routing & LB_IS_RETRY) {
		said = LB_SCRATCH(retry);
		if (said)
			flow->retry = *said;
	}
	return &flow->retry;
}

/* Whether a backend has failed for this connection. retry: NULL at a socket. */
static __always_inline int lb_retry_excludes(const struct lb_retry *retry, __u32 backend)
{
	return retry && retry->failed &&
	       (retry->failed == 1 + backend || retry->first == lb_retry_mark(backend));
}

/* Whether the packet is a reset with which the backend of such a flow refuses it. */
static __always_inline int lb_retry_is_refusal(const struct lb_packet *pkt,
					       const struct lb_conntrack *entry)
{
	return pkt->tcp_flags & LB_TCP_RST && entry->direction == LB_DIR_REPLY &&
	       lb_retry_applies(entry) && !lb_retry_has_answer(entry);
}

/* Whether the client shall not see a refusal, which has ended the flow: another backend is left. */
static __always_inline int lb_retry_hides_reset(struct lb_packet *pkt,
						const struct lb_known_flow *known)
{
	struct lb_ended_flow *ending = LB_SCRATCH(ending);
	struct lb_conntrack *original;

	lb_tuple_reverse(&pkt->reverse, &known->to);
	original = lb_conntrack_lookup_connection(&pkt->reverse);
	if (!original || !ending || !lb_retry_has_other(original))
		return 0;
	if (ending->end)
		ending->end = LB_END_RETRIED;
	return 1;
}

/*
 * The same for an ICMP error, which then ends the flow as a reset does: it quotes the SYN, with the
 * sequence number that only those know who have seen it. other: the entry of the quoted packet. One
 * with data (TCP Fast Open) may be too big, and SCTP has nothing to compare.
 */
static __always_inline int lb_retry_hides_error(struct lb_packet *pkt,
						const struct lb_packet *quote,
						struct lb_conntrack *entry,
						struct lb_conntrack *other)
{
	if (entry->direction != LB_DIR_REPLY || !lb_retry_applies(entry) ||
	    quote->tuple.proto != IPPROTO_TCP || other->sent_end - quote->seq != 1 ||
	    lb_retry_has_answer(entry) || !lb_retry_has_other(other))
		return 0;
	lb_flow_end(pkt, entry, other, LB_END_RETRIED);
	entry->state |= LB_CT_CLOSED;
	other->other_state |= LB_CT_CLOSED;
	return 1;
}

#endif
