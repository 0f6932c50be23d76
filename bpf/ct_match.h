/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Whether a conntrack entry applies to a packet, or the packet opens a new flow in its place. */
#ifndef LB_CT_MATCH_H
#define LB_CT_MATCH_H

#include "backend.h"
#include "conntrack.h"
#include "ct_state.h"
#include "flow_timeout.h"
#include "maps.h"
#include "own_udp.h"
#include "packet.h"
#include "retry.h"
#include "tunnel.h"
#include "verdict.h"

static __always_inline int lb_conntrack_has_lost_backend(const struct lb_conntrack *entry)
{
	return entry->direction == LB_DIR_ORIGINAL &&
	       !lb_backend_serving(entry->backend, entry->serial);
}

/*
 * A packet from a backend whose flow has ended may belong to a connection that a client opened
 * directly to the backend, from the same port. This is so if the backend accepts a connection that
 * was not opened here, or if the original entry already belongs to another flow. In the first case
 * the old flow is deleted, or its reply entry would apply to the new connection.
 */
static __always_inline int lb_conntrack_is_foreign(struct lb_packet *pkt,
						   const struct lb_conntrack *entry)
{
	__u8 accepts = LB_TCP_SYN | LB_TCP_ACK;
	int has_original;

	if (entry->direction != LB_DIR_REPLY || !(lb_ct_state(entry) & LB_CT_CLOSED))
		return 0;
	has_original = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0) != NULL;
	if ((pkt->tcp_flags & accepts) != accepts)
		return !has_original;
	if (has_original)
		lb_ct_short.delete(&pkt->reverse);
	lb_ct_short.delete(&pkt->tuple);
	return 1;
}

/*
 * A backend that has an earlier connection from the same port in TIME_WAIT may answer a SYN with a
 * bare ACK. The client then sends a RST, which clears the TIME_WAIT socket, and repeats its SYN
 * some milliseconds later: the flow starts again with the same backend and port, because another
 * port might meet another TIME_WAIT socket. This happens once per flow, since the backend may
 * ignore resets (RFC 1337). Returns 0 for any other flow.
 */
static __always_inline int lb_conntrack_retry(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	struct lb_conntrack *reply;

	if (lb_ct_state(entry) != (LB_CT_SYN | LB_CT_CLOSED))
		return 0;
	reply = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);
	if (!reply || lb_ct_state(reply) != (LB_CT_ACK | LB_CT_CLOSED))
		return 0;
	reply->state = 0;
	reply->other_state = 0;
	entry->state = LB_CT_SYN | LB_CT_RETRIED;
	entry->other_state = 0;
	return 1;
}

/*
 * Whether the endpoint of an established flow has not answered a SYN. One that is alive answers
 * (RFC 5961, 4.2), so that whoever sends a SYN in another's name does not end the other's connection.
 */
static __always_inline int lb_conntrack_is_silent(struct lb_packet *pkt,
						  const struct lb_conntrack *entry)
{
	struct lb_conntrack *reply;

	if (!(entry->state & LB_CT_RETRIED) ||
	    (__s64)(pkt->now - entry->last_seen) < (__s64)LB_ANSWER_TIME)
		return 0;
	reply = lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, 0);
	return !reply || (__s64)(reply->last_seen - entry->last_seen) < 0;
}

/* Whether the entry is still valid for this packet, or the packet opens a new flow in its place. */
static __always_inline int lb_conntrack_is_current(struct lb_packet *pkt,
						   struct lb_conntrack *entry, int is_udp)
{
	if (is_udp)
		return !lb_conntrack_has_lost_backend(entry) && !lb_conntrack_is_idle(pkt, entry);
	if (lb_conntrack_is_foreign(pkt, entry))
		return 0;
	if (!lb_ct_is_syn(pkt) || entry->direction != LB_DIR_ORIGINAL)
		return 1;
	if (entry->flags & LB_CT_DSR && lb_ct_state(entry) & (LB_CT_CLOSED | LB_CT_OTHER_FIN))
		return 0;
	if (lb_retry_leave(pkt, entry))
		return 0;
	if (!lb_backend_usable(entry->backend, entry->serial))
		return (lb_ct_state(entry) & (LB_CT_ESTABLISHED | LB_CT_CLOSED)) ==
			       LB_CT_ESTABLISHED &&
		       !lb_conntrack_is_silent(pkt, entry);
	return !(lb_ct_state(entry) & LB_CT_CLOSED) || lb_conntrack_retry(pkt, entry);
}

/* A flow needs both entries, but the LRU may evict one before the flow is established. */
static __always_inline int lb_has_lost_reply(struct lb_packet *pkt,
					     const struct lb_conntrack *entry, int is_udp)
{
	if (entry->direction != LB_DIR_ORIGINAL || lb_ct_state(entry) & LB_CT_ESTABLISHED ||
	    entry->flags & LB_CT_DSR)
		return 0;
	if (!is_udp && !lb_ct_is_syn(pkt) && !(entry->flags & LB_CT_SNAT))
		return 0;
	return !lb_conntrack_other(&pkt->tuple, entry, &pkt->reverse, is_udp);
}

/*
 * For a packet from a tunnel: whether the entry has the pod chosen by the sender, which knows
 * better than this node whether the pod may be used. An open connection stays where it is, and so
 * does what an earlier returned packet has opened. Packets from a tunnel never enter another one, or
 * they could loop.
 */
static __always_inline int lb_conntrack_agrees(struct lb_packet *pkt,
					       const struct lb_conntrack *entry,
					       const struct lb_geneve *geneve, int is_udp)
{
	if (entry->flags & LB_CT_DSR)
		return 0;
	if (!is_udp && !lb_ct_is_syn(pkt))
		return 1;
	if (is_udp ? lb_conntrack_is_idle(pkt, entry) : lb_ct_state(entry) & LB_CT_CLOSED)
		return 0;
	return lb_geneve_is_returned(geneve) || (entry->to.dport == geneve->port &&
						 lb_addr_is_equal(&entry->to.daddr, &geneve->pod));
}

/*
 * Whether the entry applies to this packet at this hook. An entry that a SYN replaces is deleted
 * at once, because the new connection may not be for a Service. The reply entry of an ended flow
 * stays, to keep its source port. Without DSR, entries of formerly tunneled flows do not apply.
 */
static __always_inline int lb_conntrack_applies(struct lb_packet *pkt, struct lb_conntrack *entry,
						int hook, int is_udp)
{
	struct lb_tunnel *tunnel = NULL;
	int is_valid;

	if (entry->hook != hook)
		return 0;
	if (!LB_HAS_DSR && entry->flags & LB_CT_DSR) {
		lb_conntrack_replace(pkt, entry, is_udp);
		return 0;
	}
	if (LB_HAS_DSR && hook == LB_HOOK_HOST_INGRESS)
		tunnel = lb_tunnel_opened();
	is_valid = tunnel ? lb_conntrack_agrees(pkt, entry, &tunnel->geneve, is_udp) :
			    lb_conntrack_is_current(pkt, entry, is_udp);
	if (is_valid && !lb_has_lost_reply(pkt, entry, is_udp))
		return 1;
	if (entry->direction != LB_DIR_ORIGINAL)
		return 0;
	lb_conntrack_replace(pkt, entry, is_udp);
	return 0;
}

/*
 * lb_conntrack may have an entry for another hook, from when the source address was elsewhere;
 * until a new flow replaces it there, the new flow is in lb_ct_short. The first lookups all miss a
 * connection that is established between them: it was inserted into lb_conntrack or lb_ct_dsr after
 * they were searched, and deleted from lb_ct_short before that was.
 */
static __always_inline struct lb_conntrack *
lb_conntrack_find_connection(struct lb_packet *pkt, int hook, struct lb_conntrack **one_way)
{
	struct lb_conntrack *entry = lb_conntrack.lookup(&pkt->tuple);

	if (entry && (entry->hook == hook || entry->hook == LB_HOOK_RESERVED))
		return entry;
	*one_way = lb_conntrack_lookup_dsr(&pkt->tuple, hook);
	if (*one_way)
		return NULL;
	entry = lb_ct_short.lookup(&pkt->tuple);
	if (entry || lb_ct_is_syn(pkt))
		return entry;
	*one_way = lb_conntrack_lookup_dsr(&pkt->tuple, hook);
	return *one_way ? NULL : lb_conntrack.lookup(&pkt->tuple);
}

static __always_inline struct lb_conntrack *lb_conntrack_find_udp(struct lb_packet *pkt, int hook,
								  struct lb_conntrack **one_way)
{
	struct lb_conntrack *entry = lb_conntrack_lookup_udp(&pkt->tuple);

	if (!entry)
		*one_way = lb_conntrack_lookup_dsr(&pkt->tuple, hook);
	return entry;
}

/*
 * Whether the backend of a flow in lb_ct_dsr is gone. Its connections may go on for a while, so for
 * TCP only a SYN counts that comes once more after a second in which the client sent nothing else.
 */
static __always_inline int lb_conntrack_is_stranded(struct lb_packet *pkt,
						    const struct lb_conntrack *entry, int is_udp)
{
	if (!is_udp && !lb_ct_is_syn(pkt))
		return 0;
	return lb_conntrack_has_lost_backend(entry) &&
	       (is_udp || lb_conntrack_is_silent(pkt, entry));
}

/* lb_conntrack_applies(), for an entry of lb_ct_dsr: such a connection is open, for SYNs too. */
static __always_inline int lb_conntrack_goes_on(struct lb_packet *pkt,
						const struct lb_conntrack *entry, int is_udp)
{
	int is_idle = is_udp && lb_conntrack_is_idle(pkt, entry);

	if (!lb_tunnel_opened() && !is_idle && !lb_conntrack_is_stranded(pkt, entry, is_udp))
		return 1;
	lb_ct_dsr.delete(&pkt->tuple);
	return 0;
}

/*
 * LB_NEXT: found is the entry that applies to this packet at this hook, or NULL; then one_way is the
 * entry of lb_ct_dsr, or NULL. In one variable, the verifier would explore what follows once more.
 * at_xdp: a flow that may be retried is left to tc, which knows what to do with its packets.
 */
static __always_inline int lb_conntrack_find(struct lb_packet *pkt, int hook,
					     struct lb_conntrack **found,
					     struct lb_conntrack **one_way, int is_udp, int at_xdp)
{
	*one_way = NULL;
	*found = is_udp ? lb_conntrack_find_udp(pkt, hook, one_way) :
			  lb_conntrack_find_connection(pkt, hook, one_way);
	if (LB_HAS_DSR && *one_way && !lb_conntrack_goes_on(pkt, *one_way, is_udp))
		*one_way = NULL;
	if (!*found)
		return LB_NEXT;
	if (lb_is_reserved(pkt, *found) || (at_xdp && lb_retry_applies(*found)))
		return LB_PASS;
	if (!lb_conntrack_applies(pkt, *found, hook, is_udp))
		*found = NULL;
	return LB_NEXT;
}

#endif
