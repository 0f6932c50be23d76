# SPDX-License-Identifier: Apache-2.0
"""The chart on one real cluster without kube-proxy, shared by all of these tests."""
