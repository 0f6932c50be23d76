# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb live: Services, their backends and flows on a terminal, refreshed, by keys."""
