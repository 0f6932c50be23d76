# SPDX-License-Identifier: Apache-2.0
"""What the agent has in the kernel: `node.NodeDataplane` is the entry.

It holds a generation of maps and programs, with the network that this serves and its flow tables.
"""
