# SPDX-License-Identifier: Apache-2.0
"""The cluster: its programs, control plane, nodes, network, and removal."""
