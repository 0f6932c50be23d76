# SPDX-License-Identifier: Apache-2.0
"""Metrics, commands and the troubleshooting guide agree with real traffic."""
