# SPDX-License-Identifier: Apache-2.0
"""The one truth about bytes: structs and enums shared with bpf/, and every map with its capacity.

Each compile checks that C agrees (`structs.layout_assertions()`). Every room but `kernel`
may import it.
"""
