# SPDX-License-Identifier: Apache-2.0
"""Compiling and loading: the text, the cache, the layout, generations, and what programs cost."""
