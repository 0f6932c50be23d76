# SPDX-License-Identifier: Apache-2.0
"""The real Cilium on the nodes of a lab of its own, in place of kube-proxy."""
