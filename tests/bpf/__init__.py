# SPDX-License-Identifier: Apache-2.0
"""Tests that load programs. Assertions in the modules they share explain themselves, too."""

import pytest

pytest.register_assert_rewrite("tests.bpf.harness.packets", "tests.bpf.harness.datapath")
