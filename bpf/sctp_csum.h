/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The SCTP checksum after a change of ports. It does not cover the addresses. */
#ifndef LB_SCTP_CSUM_H
#define LB_SCTP_CSUM_H

#include "crc32c.h"
#include "maps.h"
#include "packet.h"
#include "transport.h"

/* Converts between the byte order of CRC32c and that of the host, in both directions. */
static __always_inline __u32 lb_sctp_swap_bytes(__u32 little)
{
	return __builtin_bswap32(bpf_ntohl(little));
}

/*
 * Stores the change for lb_sctp_csum_update(). A checksum of zero stays: the sender leaves it to
 * the device, which expects zero. A fragment does not show the length of the whole packet, so this
 * fails unless the ports stay the same.
 */
static __always_inline int lb_sctp_csum_defer(struct __sk_buff *skb, const struct lb_packet *pkt,
					      const struct lb_tuple *to)
{
	struct lb_sctp_change *change;
	__u32 before, after;

	__builtin_memcpy(&before, &pkt->tuple.sport, sizeof(before));
	__builtin_memcpy(&after, &to->sport, sizeof(after));
	if (before == after || !pkt->crc)
		return 0;
	change = LB_SCRATCH(sctp);
	if (!change || pkt->fragment)
		return -1;
	change->ports = before ^ after;
	change->crc = pkt->crc;
	change->len = pkt->len - (pkt->l4 - pkt->l3);
	change->from_end = skb->len - pkt->l4 - offsetof(struct lb_sctp, crc);
	return 0;
}

/*
 * The last step of a program: the arithmetic is long, and at this point the verifier has few states
 * left. The position of the checksum is counted from the end, because the packet may have grown at
 * the front.
 */
static __always_inline void lb_sctp_csum_update(struct __sk_buff *skb)
{
	struct lb_sctp_change *change = LB_SCRATCH(sctp);
	__u32 diff;
	__le32 crc;

	if (!change || !change->ports)
		return;
	diff = lb_crc32c_multiply(lb_sctp_swap_bytes(change->ports), lb_crc32c_shift(change->len));
	crc = change->crc ^ lb_sctp_swap_bytes(diff);
	change->ports = 0;
	bpf_skb_store_bytes(skb, skb->len - change->from_end, &crc, sizeof(crc), 0);
}

#endif
