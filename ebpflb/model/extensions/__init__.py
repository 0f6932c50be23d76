# SPDX-License-Identifier: Apache-2.0
"""What Services have beyond the rules of kube-proxy, if their annotations ask for it."""
