# SPDX-License-Identifier: Apache-2.0
"""Connections: conntrack, source ports, flow records, and how they end."""
