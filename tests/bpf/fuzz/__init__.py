# SPDX-License-Identifier: Apache-2.0
"""Thousands of hostile packets, and the oracle that judges the result of each."""
