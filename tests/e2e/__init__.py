# SPDX-License-Identifier: Apache-2.0
"""Real traffic in the lab. pytest also explains the assertions of the modules that tests share."""

import pytest

pytest.register_assert_rewrite(
    "tests.e2e.harness.cluster",
    "tests.e2e.harness.command",
    "tests.e2e.harness.loads",
    "tests.e2e.harness.sockets",
)
