# SPDX-License-Identifier: Apache-2.0
"""Hostile packets by the thousand, and the judge of what became of them."""
