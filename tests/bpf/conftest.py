# SPDX-License-Identifier: Apache-2.0
"""The programs are loaded once; each test finds the maps empty, in the node's namespace."""

import os
from collections.abc import Iterator

import pytest

from ebpflb.dataplane import libbpf
from ebpflb.dataplane.source_text import source_text
from ebpflb.dataplane.uapi import AttachType
from tests.bpf.datapath import Datapath, Loaded, load
from tests.bpf.node import Node, Tap
from tests.bpf.packets import KINDS, TCP_KINDS, UDP_KINDS, Kind
from tests.bpf.services import node_addresses
from tests.skips import kernel_lacks


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


@pytest.fixture(scope="module")
def attached(programs: Loaded, machine: Node) -> Iterator[None]:
    """Each device with the programs that belong there; `bare` has none."""
    hooks = {
        "host": (machine.uplink, machine.overlay),
        "pod": (machine.pod,),
        "l3": (machine.tunnel,),
    }
    with machine.entered():
        links = [
            _attach(programs.programs[f"lb_{kind}_{direction}"], tap, direction)
            for kind, taps in hooks.items()
            for tap in taps
            for direction in ("ingress", "egress")
        ]
    yield
    for link in links:
        os.close(link)


@pytest.fixture
def wired(attached: None, datapath: Datapath, node: Node) -> None:
    """Programs at the devices, and the node's addresses in the maps."""
    node_addresses(datapath, node)


def _attach(program: int, tap: Tap, direction: str) -> int:
    try:
        return libbpf.link_create(program, tap.ifindex, AttachType[f"TCX_{direction.upper()}"])
    except OSError as error:
        kernel_lacks("tcx", str(error))


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
