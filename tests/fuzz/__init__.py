# SPDX-License-Identifier: Apache-2.0
"""`make fuzz`: what holds for every seed, with fresh seeds. Those of `make test` are fixed."""
