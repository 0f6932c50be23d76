# SPDX-License-Identifier: Apache-2.0
"""Kubernetes Services without kube-proxy, in the kernel with eBPF, beside the CNI."""

__version__ = "0.1.0"
