# SPDX-License-Identifier: Apache-2.0
"""kube-proxy's rules and devices, created in the tests' namespaces and removed again."""
