# SPDX-License-Identifier: Apache-2.0
"""One cluster with the CNI that --cni names; its row of the table is written at the end."""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.harness import release
from tests.cluster.harness.cluster import Cluster
from tests.cni.recorder import Recorder
from tests.cni.row import Cni, rows
from tests.cni.subjects import Subjects
from tests.image.build import image_archive


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which row is run."""
    parser.addoption("--cni", choices=sorted(rows()), help="the row of docs/compatibility.md")


def pytest_configure(config: pytest.Config) -> None:
    """Without a CNI there is nothing to test."""
    if not config.getoption("--cni"):
        raise pytest.UsageError(f"--cni says which of {', '.join(sorted(rows()))}")
    if not config.option.collectonly:
        config.pluginmanager.register(Recorder(config), "cni")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the CNI lacks; all tests need root and more time than others."""
    chosen = rows()[config.getoption("--cni")]
    left_out = [item for item in items if _is_lacking(chosen, item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        item.add_marker("bpf")
        item.add_marker("cluster")
        item.add_marker(pytest.mark.timeout(600))


def _is_lacking(row: Cni, item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    is_ipv6 = parameters is not None and parameters.params.get("family") == "IPv6"
    no_family = is_ipv6 and not row.ipv6
    return no_family or getattr(item, "originalname", "") in row.lacks


@pytest.fixture(scope="session")
def cni(request: pytest.FixtureRequest) -> Cni:
    """The row."""
    return rows()[request.config.getoption("--cni")]


@pytest.fixture(scope="session")
def cluster(cni: Cni) -> Iterator[Cluster]:
    """Two nodes with the CNI and the chart."""
    archive = image_archive()
    made = Cluster.up(f"cni-{os.getpid()}", cni=cni.network)
    try:
        made.load_image(archive)
        release.deploy(made, "install", release.values(made, **cni.values))
        if cni.add:
            cni.add(made)
        yield made
    finally:
        made.down()


@pytest.fixture(scope="session")
def subjects(cluster: Cluster, cni: Cni) -> Subjects:
    """Clients and servers on both nodes, and Services."""
    made = Subjects(cluster, cni.ipv6, balances=cni.add is not None)
    made.apply()
    return made
