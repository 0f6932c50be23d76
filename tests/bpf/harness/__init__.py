# SPDX-License-Identifier: Apache-2.0
"""Shared by tests of the programs: compiled programs, a node, frames, processes in a cgroup."""
