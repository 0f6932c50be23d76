# SPDX-License-Identifier: Apache-2.0
"""The relay of the chart: its pods, its rights, and its certificates."""
