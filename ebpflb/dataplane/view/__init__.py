# SPDX-License-Identifier: Apache-2.0
"""The maps as plain values: a snapshot of Services, rates between two samples, raw dumps, fill.

Metrics, `ebpflb top`, `ebpflb maps` and `explain` read it. It never writes, and needs no agent.
"""
