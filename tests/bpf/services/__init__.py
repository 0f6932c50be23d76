# SPDX-License-Identifier: Apache-2.0
"""Services in the maps: which frontend, which backend, who is let in."""
