# SPDX-License-Identifier: Apache-2.0
"""The kernel's interfaces: bpf(2) by libbpf, netlink partly by pyroute2, namespaces, probes.

Nothing here knows about Services. All other packages of the dataplane may call it; it calls none.
"""
