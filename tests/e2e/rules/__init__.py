# SPDX-License-Identifier: Apache-2.0
"""kube-proxy's rules with real traffic: which client is served, by which pod, and what the pod
sees.
"""
