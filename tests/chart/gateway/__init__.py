# SPDX-License-Identifier: Apache-2.0
"""The Gateway controller of the chart: its pods, and its rights."""
