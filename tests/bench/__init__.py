# SPDX-License-Identifier: Apache-2.0
"""Measurements of speed and size: `make bench`. They are not tests and cannot fail.

Decisions: docs/development/decisions/testing.md.
"""
