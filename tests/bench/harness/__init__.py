# SPDX-License-Identifier: Apache-2.0
"""Shared by benches: labs, agents, load, rounds, and the report."""
