# SPDX-License-Identifier: Apache-2.0
"""The chart on one real cluster without kube-proxy, which all of these tests share."""
