# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: one reader of the maps, and the pages made from what it read.

`page.Metrics` is the entry point.
"""
