# SPDX-License-Identifier: Apache-2.0
"""The cluster of this folder, created once: tests must leave it as they found it."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.harness import release
from tests.cluster.harness.cluster import Cluster
from tests.cluster.released.plugin import Plugin
from tests.cluster.released.shop import open_shop
from tests.image.build import image_archive


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Two nodes with the chart of this checkout, and the shop."""
    archive = image_archive()
    made = Cluster.up(f"released-{os.getpid()}")
    try:
        made.load_image(archive)
        others = {"relay": {"enabled": True}, "metrics": {"backends": True}}
        release.deploy(made, "install", release.values(made, **others))
        open_shop(made)
        yield made
    finally:
        made.down()


@pytest.fixture(scope="package")
def plugin(cluster: Cluster) -> Plugin:
    """kubectl ebpflb with admin rights."""
    return Plugin(cluster.kubeconfig)
