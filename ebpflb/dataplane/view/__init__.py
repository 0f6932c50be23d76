# SPDX-License-Identifier: Apache-2.0
"""One reading of the maps as plain values: frontends, backends, counters, rates, raw dumps.

Read by metrics, `ebpflb top`, `ebpflb maps dump` and `explain`. It only reads, and needs no agent.
"""
