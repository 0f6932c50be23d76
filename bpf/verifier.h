/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The verifier follows a program once for each thing it knows of a packet: its family, its protocol,
 * where its headers begin. What it reads from a map it knows nothing of.
 */
#ifndef LB_VERIFIER_H
#define LB_VERIFIER_H

#include "maps.h"
#include "parse.h"

/* The packet stays as it is. Where this was called the verifier's ways to it become one. */
static __always_inline void lb_verifier_forget(struct lb_packet *pkt)
{
	struct lb_packet *forgotten;
	int zero = 0;

	forgotten = lb_forgotten.lookup(&zero);
	if (!forgotten)
		return;
	*forgotten = *pkt;
	asm volatile("" ::: "memory");
	*pkt = *forgotten;
}

#endif
