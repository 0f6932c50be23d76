# SPDX-License-Identifier: Apache-2.0
"""What benches share: labs, agents, load, rounds, and the report."""
