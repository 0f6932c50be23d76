# SPDX-License-Identifier: Apache-2.0
"""The agent of one node: what manifests say and what the network is, brought into the kernel."""
