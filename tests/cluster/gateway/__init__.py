# SPDX-License-Identifier: Apache-2.0
"""Gateway API: its definitions and its own tests."""
