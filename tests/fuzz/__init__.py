# SPDX-License-Identifier: Apache-2.0
"""`make fuzz`: properties that hold for every seed, with new seeds. Those of `make test` are
fixed.
"""
