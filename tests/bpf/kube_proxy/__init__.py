# SPDX-License-Identifier: Apache-2.0
"""What kube-proxy leaves on a node, made in namespaces of the test's own, and taken away again."""
