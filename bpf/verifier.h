/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How to keep the verifier from exploring the same code many times: it does so once for each set of
 * facts that it knows about a packet, such as its family, its protocol or the offset of its
 * headers. It knows nothing about values read from a map.
 */
#ifndef LB_VERIFIER_H
#define LB_VERIFIER_H

#include "maps.h"
#include "packet.h"

/* Does not change the packet. The verifier's states become one here. */
static __always_inline void lb_verifier_merge_states(struct lb_packet *pkt)
{
	struct lb_packet *copy = LB_SCRATCH(pkt);

	if (!copy)
		return;
	*copy = *pkt;
	asm volatile("" ::: "memory");
	*pkt = *copy;
}

#endif
