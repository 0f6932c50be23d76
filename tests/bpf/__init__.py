# SPDX-License-Identifier: Apache-2.0
"""Tests that load programs into the kernel. Assertions of the modules they share explain themselves."""

import pytest

pytest.register_assert_rewrite("tests.bpf.packets", "tests.bpf.datapath")
