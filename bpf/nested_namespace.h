/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Network namespaces that a pod has made: for kind, for containers of a CI job, for a VPN client. The
 * address of a Service may be somebody else's there, so their sockets are left alone. What they send
 * to a Service of this cluster leaves by the pod's device, where tc translates it.
 */
#ifndef LB_NESTED_NAMESPACE_H
#define LB_NESTED_NAMESPACE_H

#include "maps.h"

/* A pod's cgroup is at level 3 or 4, or a few deeper on a node that is itself a container. */
#define LB_CGROUP_LEVELS 16

/*
 * Whether the current process is below the cgroup of a pod under tc cover. If its namespace is not in
 * lb_netns, it is not the pod's own, which would be there.
 */
static __always_inline int lb_is_inside_covered_pod(void)
{
	for (int level = 1; level < LB_CGROUP_LEVELS; level++) {
		__u64 cgroup = bpf_get_current_ancestor_cgroup_id(level);

		if (!cgroup)
			return 0;
		if (lb_pod_cgroups.lookup(&cgroup))
			return 1;
	}
	return 0;
}

#endif
