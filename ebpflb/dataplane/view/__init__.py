# SPDX-License-Identifier: Apache-2.0
"""The maps as plain values: snapshots of Services, rates between two samples, raw dumps, fill.

Used by metrics, `ebpflb top`, `ebpflb maps` and `explain`. It never writes, and needs no agent.
"""
