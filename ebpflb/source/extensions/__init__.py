# SPDX-License-Identifier: Apache-2.0
"""What is read for Services that have more than the rules of kube-proxy, and only for these."""
