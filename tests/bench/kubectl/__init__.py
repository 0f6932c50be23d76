# SPDX-License-Identifier: Apache-2.0
"""The kubectl plugin before a cluster of many nodes, which one process stands for."""
