# SPDX-License-Identifier: Apache-2.0
"""The image's files, and a node of the lab to run it on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ebpflb.lab import Lab, LabConfig
from tests.chart.harness.rendering import agent, container, render, settings_file
from tests.e2e.harness.cluster import built, lab_name
from tests.image.container import (
    Container,
    binds_on,
    image_root,
    own_capabilities,
    variables_on,
)


@pytest.fixture(scope="session")
def root() -> Iterator[Path]:
    """The image, built if necessary."""
    with image_root() as root:
        yield root


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two nodes with two pods each and both families."""
    with built(LabConfig(lab_name(), pods=2)) as lab:
        yield lab


@pytest.fixture
def pod(root: Path, lab: Lab, tmp_path: Path) -> Iterator[Container]:
    """The agent's container on node1 as the chart defines it; it ends with the test."""
    settings = tmp_path / "config.yaml"
    settings.write_text(settings_file(render()))
    wanted = container(agent(), "ebpflb")["securityContext"]["capabilities"]["add"]
    node = lab.node("node1")
    made = Container(
        root,
        tmp_path / "bundle",
        own_capabilities(wanted),
        variables_on(node),
        binds_on(node, settings),
    )
    yield made
    made.end()
