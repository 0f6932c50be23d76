# SPDX-License-Identifier: Apache-2.0
"""Clusters for tests, created once and shared."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.control_plane import ControlPlane

# Seconds after which a test counts as hung: a machine may be busy.
_TIMEOUT = 900


def pytest_itemcollected(item: pytest.Item) -> None:
    """All tests of this folder need a control plane, root, and more time than others."""
    item.add_marker("bpf")
    item.add_marker("cluster")
    if not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(_TIMEOUT))


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """An API without nodes, shared by all tests: use a namespace of your own."""
    control = ControlPlane.up(f"api-{os.getpid()}")
    yield control
    control.down()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes without a Service proxy, shared by all tests."""
    made = Cluster.up(f"test-{os.getpid()}")
    yield made
    made.down()
