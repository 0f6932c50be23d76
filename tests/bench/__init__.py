# SPDX-License-Identifier: Apache-2.0
"""Measurements of speed and size: `make bench`. None of them is a test or can fail one.

Decisions: docs/development/decisions/testing.md.
"""
