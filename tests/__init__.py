# SPDX-License-Identifier: Apache-2.0
"""Tests: unit (no root), bpf and e2e (root), test_repo.py (the repository's own rules)."""
