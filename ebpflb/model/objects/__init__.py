# SPDX-License-Identifier: Apache-2.0
"""API objects: their kinds and names, and what changed since somebody last looked."""
