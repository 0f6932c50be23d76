# SPDX-License-Identifier: Apache-2.0
"""What Services can have beyond the rules of kube-proxy, by real sockets and packets."""
