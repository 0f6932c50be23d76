# SPDX-License-Identifier: Apache-2.0
"""Tests that load programs. pytest also explains the assertions of the modules that they share."""

import pytest

pytest.register_assert_rewrite("tests.bpf.harness.packets", "tests.bpf.harness.datapath")
