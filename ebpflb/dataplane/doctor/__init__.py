# SPDX-License-Identifier: Apache-2.0
"""Checks of one node, each a function that returns findings; they change nothing.

`checks.examine()` runs all of them for `ebpflb doctor`.
"""
