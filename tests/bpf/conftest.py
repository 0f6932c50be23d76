# SPDX-License-Identifier: Apache-2.0
"""The programs are loaded once; each test finds the maps empty and stands in the node's namespace."""

from collections.abc import Iterator

import pytest

from ebpflb.dataplane.source_text import source_text
from tests.bpf.datapath import Datapath, Loaded, load
from tests.bpf.node import Node
from tests.bpf.packets import KINDS, TCP_KINDS, UDP_KINDS, Kind


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """All programs of bpf/ and their maps."""
    return load(tmp_path_factory.mktemp("bpffs"), source_text())


@pytest.fixture(scope="session")
def machine() -> Iterator[Node]:
    """The namespace, made once."""
    node = Node()
    yield node
    node.close()


@pytest.fixture
def node(machine: Node) -> Iterator[Node]:
    """The namespace, entered, with nothing waiting to be received."""
    with machine.entered():
        for tap in machine.taps:
            tap.drain()
        yield machine


@pytest.fixture
def datapath(programs: Loaded, node: Node) -> Datapath:
    """Empty maps, and programs that run in the node's namespace."""
    datapath = Datapath(programs)
    datapath.reset()
    return datapath


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each family with each protocol."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=TCP_KINDS, ids=str)
def tcp(request: pytest.FixtureRequest) -> Kind:
    """TCP in each family."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=UDP_KINDS, ids=str)
def udp(request: pytest.FixtureRequest) -> Kind:
    """UDP in each family."""
    return request.param  # type: ignore[no-any-return]
