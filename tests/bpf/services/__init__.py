# SPDX-License-Identifier: Apache-2.0
"""Services in the maps: frontend lookup, backend selection, source ranges."""
