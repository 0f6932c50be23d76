# SPDX-License-Identifier: Apache-2.0
"""Attacks, and their effect on other clients; docs/threat-model.md has the table."""
