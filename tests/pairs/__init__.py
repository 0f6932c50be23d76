# SPDX-License-Identifier: Apache-2.0
"""What any two annotations of a Service do together.

A new annotation needs an Effect in effects.py, which says when it does what it is for, and a row in
table.py for each other one with which it does something else. Tests walk all pairs.
"""
