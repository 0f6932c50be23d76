/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Verdicts, the results of a step: LB_NEXT goes on, another enum lb_verdict is final, and a
 * negative value is -enum lb_drop_reason. Only lb_tc_exit() and lb_socket_exit() turn it into an
 * action.
 */
#ifndef LB_VERDICT_H
#define LB_VERDICT_H

#include "types.h"

/* In -verdict, beside a reason for which clients are refused otherwise: dropped, without an answer. */
#define LB_DROP_SILENT 32

/* Reasons for which clients are refused. */
#define LB_REFUSALS                                                   \
	(1ULL << LB_DROP_NO_ENDPOINT | 1ULL << LB_DROP_UNKNOWN_PORT | \
	 1ULL << LB_DROP_BACKENDS_FULL | 1ULL << LB_DROP_CLIENT_OPEN | 1ULL << LB_DROP_CLIENT_NEW)

enum lb_verdict {
	LB_NEXT = 0,
	/* Leave it to the next program or the stack: not for a Service, or translated in place. */
	LB_PASS = 1,
	/* A redirect helper has been called. */
	LB_REDIRECT = 2,
	/* It goes to pkt->tunneled.node in a tunnel (tunnel.h). */
	LB_TUNNEL = 3,
	/* The client shall not see it (retry.h): dropped, but no drop. */
	LB_HIDE = 4,
};

/* reason: -verdict. */
static __always_inline int lb_is_refusal(int reason)
{
	return LB_REFUSALS >> reason & 1;
}

/* enum lb_drop_reason of a verdict below zero. */
static __always_inline int lb_reason_of(int verdict)
{
	return -verdict & (LB_DROP_SILENT - 1);
}

#endif
