# SPDX-License-Identifier: Apache-2.0
"""What tests of the programs share: compiled programs, a node, frames, processes in a cgroup."""
