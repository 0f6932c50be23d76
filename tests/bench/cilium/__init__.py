# SPDX-License-Identifier: Apache-2.0
"""The real Cilium on the nodes of a separate lab, in place of kube-proxy."""
