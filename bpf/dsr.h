/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Direct server return: the node that receives a client's packet chooses the pod and tunnels the
 * packet to the pod's node, which answers the client directly. The first node sees only one
 * direction, and keeps one entry: the flow's tuple -> its pod, with the pod's node in place of the
 * client. It cannot know whether the pod answers, so that whoever sends from made-up addresses gets
 * as many entries as real clients: these flows are only in tables that evict, and those that have
 * lasted are in lb_ct_dsr, apart from those that begin.
 */
#ifndef LB_DSR_H
#define LB_DSR_H

#include "backend.h"
#include "conntrack.h"
#include "ct_sequence.h"
#include "ct_state.h"
#include "counters.h"
#include "ejection.h"
#include "flow_record.h"
#include "maps.h"
#include "masquerade.h"
#include "packet.h"
#include "scheduler.h"
#include "tunnel.h"
#include "verdict.h"

/* TCP: an established flow has had so many packets, as the shortest exchange has. */
#define LB_DSR_PACKETS 4

/* In place of the index of a backend that this node does not know. */
#define LB_NO_BACKEND (~0u)

/*
 * Whether a client that comes from outside is another node or one of its known pods. It may be
 * where the backend is, which would then not answer by way of that node's host devices.
 */
static __always_inline int lb_dsr_is_of_cluster(const struct lb_packet *pkt)
{
	struct lb_addr client = pkt->tuple.saddr;

	return lb_nodes.lookup(&client) || lb_pod_nodes.lookup(&client);
}

/* The node of a remote backend, if this packet may be tunneled there. */
static __always_inline struct lb_addr *lb_dsr_node(const struct lb_packet *pkt,
						   const struct lb_desc *desc,
						   const struct lb_backend *backend)
{
	struct lb_addr pod = backend->addr;

	if (!LB_HAS_DSR || !(desc->flags & LB_DESC_DSR) || pkt->routing & LB_IS_RETURNED ||
	    lb_is_known_local(backend) || lb_dsr_is_of_cluster(pkt))
		return NULL;
	return lb_pod_nodes.lookup(&pod);
}

/* Inserts the only entry of the flow. */
static __always_inline int lb_dsr_create(struct lb_packet *pkt, struct lb_flow *flow)
{
	int is_udp = pkt->tuple.proto == IPPROTO_UDP;
	struct lb_conntrack *entry = LB_SCRATCH(entry);

	if (!entry)
		return -LB_DROP_CONNTRACK_FULL;
	lb_conntrack_fill(entry, flow, pkt->now);
	entry->state = LB_CT_SYN;
	entry->packets = pkt->segs;
	entry->bytes = lb_payload(pkt);
	if (pkt->tuple.proto == IPPROTO_TCP)
		entry->sent_end = lb_tcp_end(pkt);
	return lb_conntrack_update(&pkt->tuple, entry, is_udp) ? -LB_DROP_CONNTRACK_FULL : LB_NEXT;
}

/* A UDP flow is a stream if it lasts longer than an exchange. */
static __always_inline int lb_dsr_has_lasted(const struct lb_packet *pkt,
					     const struct lb_conntrack *entry, int is_udp)
{
	if (is_udp)
		return (__s64)(entry->last_seen - entry->created) > (__s64)LB_UDP_EXCHANGE;
	return (pkt->tcp_flags & (LB_TCP_SYN | LB_TCP_ACK)) == LB_TCP_ACK &&
	       entry->packets >= LB_DSR_PACKETS;
}

/* Moves a flow that has lasted. Waits while tables are being replaced. */
static __always_inline void lb_dsr_establish(struct lb_packet *pkt, struct lb_conntrack *entry,
					     int is_udp)
{
	struct lb_conntrack *lasting;

	if (lb_has_setting(LB_SETTING_HOLD | LB_SETTING_DIVERT))
		return;
	lasting = lb_conntrack_copy(entry);
	if (!lasting || (!lb_conntrack_is_opening(&pkt->tuple, entry, is_udp) &&
			 !lb_conntrack_is_settled(&pkt->tuple, entry, is_udp)))
		return;
	lasting->state |= LB_CT_ESTABLISHED;
	if (!lb_ct_dsr.update(&pkt->tuple, lasting))
		lb_conntrack_delete(&pkt->tuple, 0, is_udp);
}

/*
 * Remembers how far the client has sent. Returns 0 if the packet is far from that, as one is of
 * somebody who knows only the addresses and ports. What the pod has sent is not seen here: a packet
 * that is far ahead moves nothing, though the client may have lost so much on the way.
 */
static __always_inline int lb_dsr_track_sent(const struct lb_packet *pkt,
					     struct lb_conntrack *entry)
{
	__s32 most = pkt->tcp_flags & (LB_TCP_RST | LB_TCP_FIN) ? LB_RESET_DISTANCE : LB_IN_FLIGHT;
	int begins = lb_ct_is_syn(pkt) && !(lb_ct_state(entry) & LB_CT_ESTABLISHED);
	__s32 ahead = pkt->seq - entry->sent_end;
	__u32 end = lb_tcp_end(pkt);

	if (entry->sent_end && !begins && (ahead > most || ahead < -LB_RESET_DISTANCE))
		return 0;
	if (!(pkt->tcp_flags & LB_TCP_RST) &&
	    (!entry->sent_end || begins || (__s32)(end - entry->sent_end) > 0))
		entry->sent_end = end;
	return 1;
}

/* Whether the client ends the connection. Of SCTP whatever says so. */
static __always_inline int lb_dsr_ends(const struct lb_packet *pkt, struct lb_conntrack *entry)
{
	if (pkt->tuple.proto == IPPROTO_TCP && !lb_dsr_track_sent(pkt, entry))
		return 0;
	return pkt->tcp_flags & (LB_TCP_RST | LB_TCP_FIN);
}

/*
 * The client has closed or given up. Its further packets are still forwarded, but the entry moves
 * to where it does not evict flows that go on. After a FIN the pod may send for long, and the client
 * acknowledge it: the entry has LB_CT_ESTABLISHED, and the timeout of a flow that one side has
 * closed.
 */
static __always_inline void lb_dsr_close(struct lb_packet *pkt, struct lb_conntrack *entry)
{
	__u8 end = pkt->tcp_flags & LB_TCP_RST ? LB_CT_CLOSED : LB_CT_OTHER_FIN;
	__u8 was = lb_ct_state(entry);
	struct lb_conntrack *closed;

	if (was & (end | LB_CT_CLOSED))
		return;
	if (!(was & LB_CT_OTHER_FIN))
		lb_flow_note_end(entry, &pkt->tuple.saddr);
	entry->state |= end == LB_CT_CLOSED ? end : end | LB_CT_ESTABLISHED;
	if (!(was & LB_CT_ESTABLISHED))
		return;
	closed = lb_conntrack_copy(entry);
	if (!closed)
		return;
	if (end == LB_CT_CLOSED)
		closed->state &= ~LB_CT_ESTABLISHED;
	if (!lb_ct_short.update(&pkt->tuple, closed))
		lb_ct_dsr.delete(&pkt->tuple);
}

/* A packet of a flow in lb_ct_dsr. The entry may move: do not use it afterwards. */
static __always_inline void lb_dsr_go_on(struct lb_packet *pkt, struct lb_conntrack *entry,
					 int is_udp)
{
	lb_conntrack_count(pkt, entry);
	if (is_udp)
		return;
	if (lb_ct_is_syn(pkt))
		entry->state |= LB_CT_RETRIED;
	else
		entry->state &= ~LB_CT_RETRIED;
	if (lb_dsr_ends(pkt, entry))
		lb_dsr_close(pkt, entry);
}

/*
 * In place of lb_conntrack_track(). The entry may move: do not use it afterwards. Ejection does not
 * count these flows, because whether the pod answers is not seen here.
 */
static __always_inline void lb_dsr_track(struct lb_packet *pkt, struct lb_conntrack *entry,
					 int is_udp)
{
	__u8 ended = LB_CT_CLOSED | LB_CT_OTHER_FIN;

	lb_conntrack_count(pkt, entry);
	if (!is_udp && lb_dsr_ends(pkt, entry))
		lb_dsr_close(pkt, entry);
	else if (!(lb_ct_state(entry) & ended) && lb_dsr_has_lasted(pkt, entry, is_udp))
		lb_dsr_establish(pkt, entry, is_udp);
}

/*
 * Whether what the tunnel's sender has chosen is an endpoint of the Service on this node. Its index
 * stays LB_NO_BACKEND if another backend has got that.
 */
static __always_inline int lb_dsr_is_here(const struct lb_geneve *geneve,
					  const struct lb_desc *desc, __u8 proto,
					  struct lb_flow *flow)
{
	struct lb_pod_key key = {
		.addr = geneve->pod,
		.port = geneve->port,
		.proto = proto,
		.service = desc->service,
	};
	__u32 *found = lb_pods_here.lookup(&key);
	struct lb_backend *backend;
	int i;

	flow->backend = LB_NO_BACKEND;
	if (!found)
		return 0;
	i = *found;
	backend = lb_backends.lookup(&i);
	if (backend && backend->port == geneve->port &&
	    lb_addr_is_equal(&backend->addr, &geneve->pod)) {
		flow->backend = i;
		flow->serial = backend->serial;
	}
	return 1;
}

/*
 * Where the pod's answers are reversed: at the client's device, if the route says that it is a pod
 * of this node.
 */
static __always_inline __u8 lb_dsr_reply_hook(struct bpf_fib_lookup *fib, void *ctx,
					      const struct lb_packet *pkt,
					      const struct lb_geneve *geneve)
{
	int is_pod;

	lb_fib_fill(fib, pkt, &geneve->pod, &pkt->tuple.saddr, pkt->ifindex);
	is_pod = !lb_fib_ask(fib, ctx, pkt, 0) && !lb_is_host_device(fib->ifindex);
	fib->ifindex = 0;
	return is_pod ? LB_HOOK_POD_EGRESS : LB_HOOK_HOST_EGRESS;
}

#endif
