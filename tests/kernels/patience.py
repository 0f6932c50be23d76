# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for emulated machines: pods and agents of a lab may take long to start."""

import pytest

from ebpflb.lab import cluster, member


def pytest_configure(config: pytest.Config) -> None:
    """Called once, before any test."""
    member._START_TIMEOUT = 900.0
    cluster._REACH_TIMEOUT = 300.0
