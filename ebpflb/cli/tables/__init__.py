# SPDX-License-Identifier: Apache-2.0
"""The tables, and their options, that `ebpflb` and the kubectl plugin have in common."""
