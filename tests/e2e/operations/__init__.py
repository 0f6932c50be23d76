# SPDX-License-Identifier: Apache-2.0
"""The agent starts, exits, is upgraded, takes over from kube-proxy, and is uninstalled."""
