# SPDX-License-Identifier: Apache-2.0
"""The chart as helm renders it, its alerts, dashboards and schemas."""
