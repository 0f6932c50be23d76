# SPDX-License-Identifier: Apache-2.0
"""The single source of byte layouts: structs and enums shared with bpf/, and all maps with sizes.

Each compile checks that C agrees (`assertions.layout_assertions()`). Every package except `kernel`
may import it.
"""
