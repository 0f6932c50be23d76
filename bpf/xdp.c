/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The entry point at XDP, on uplinks, for packets that leave the node again without the stack. */
#include "config.h"

#if LB_HAS_XDP
#include "xdp_path.h"

int lb_xdp(struct xdp_md *ctx)
{
	return lb_xdp_request(ctx);
}
#endif
