# SPDX-License-Identifier: Apache-2.0
"""Compiling and loading: source text, cache, layout, generations, and the cost of the programs."""
