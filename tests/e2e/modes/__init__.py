# SPDX-License-Identifier: Apache-2.0
"""kube-proxy's rules with real traffic: who is served, by whom, and what the backend sees."""
