# SPDX-License-Identifier: Apache-2.0
"""Finding and removing what kube-proxy left in the kernel: iptables, nftables, IPVS, ipsets.

`removal.remove_kube_proxy()` is the entry point, for `ebpflb takeover` and the doctor.
Decisions: docs/development/decisions/kube-proxy.md.
"""
