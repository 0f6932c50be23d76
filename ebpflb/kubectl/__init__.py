# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb: the agents of all nodes in one command, through the API server."""
