# SPDX-License-Identifier: Apache-2.0
"""The kubectl plugin with a cluster of many nodes, simulated by one process."""
