# SPDX-License-Identifier: Apache-2.0
"""The programs are loaded once; each test gets empty maps, inside the node's namespace."""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ebpflb.dataplane.attach.links import LoadedProgram, TcDirection
from ebpflb.dataplane.attach.tc import Clsact
from ebpflb.dataplane.kernel import libbpf, libc
from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink
from ebpflb.dataplane.kernel.uapi import AttachType
from ebpflb.dataplane.load.source_text import source_text
from ebpflb.lab.namespaces import detach
from tests.bpf.harness.asker import Asker
from tests.bpf.harness.asking import asking
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import Loaded, load
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import KINDS, SCTP_KINDS, TCP_KINDS, UDP_KINDS, Kind
from tests.bpf.harness.ring import ALL_EVENTS, Ring
from tests.bpf.harness.services import node_addresses
from tests.own import own_name

# The programs' clock may lag by up to this much.
CLOCK_TICK = 0.01


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """All programs of bpf/ and their maps."""
    return load(tmp_path_factory.mktemp("bpffs"), source_text())


@pytest.fixture(scope="session")
def machine() -> Iterator[Node]:
    """The namespace, created once."""
    node = Node()
    yield node
    node.close()


@pytest.fixture
def bpffs(tmp_path: Path) -> Iterator[Path]:
    """A bpffs for one test, unmounted afterwards even if still in use."""
    directory = tmp_path / "bpffs"
    directory.mkdir()
    libc.mount_bpffs(directory, own_name("bpffs"))
    yield directory
    detach(directory)


@pytest.fixture
def node(machine: Node) -> Iterator[Node]:
    """The namespace, entered, with empty receive queues."""
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


@pytest.fixture
def ring(datapath: Datapath) -> Ring:
    """Every flow is recorded; none has been yet."""
    datapath.settings(flow_events=ALL_EVENTS, flow_sample=1)
    ring = Ring(datapath.maps["lb_flows"])
    ring.take()
    return ring


@pytest.fixture(scope="module")
def attached(
    programs: Loaded, machine: Node, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Each device with its programs; `bare` has none."""
    hooks = {
        "host": (machine.uplink, machine.overlay),
        "pod": (machine.pod,),
        "l3": (machine.tunnel,),
    }
    with machine.entered():
        netlink = Rtnetlink()
        attach = way_to_attach(Clsact(netlink, tmp_path_factory.mktemp("clsact")))
        detach = [
            attach(programs.programs[f"lb_{kind}_{direction}"], tap.ifindex, direction)
            for kind, taps in hooks.items()
            for tap in taps
            for direction in TcDirection
        ]
    with netlink:
        yield
        for each in detach:
            each()


@pytest.fixture
def addresses(datapath: Datapath, node: Node) -> None:
    """The node's addresses in the maps."""
    node_addresses(datapath, node)


@pytest.fixture
def wired(attached: None, addresses: None) -> None:
    """Programs at the devices, and the node's addresses in the maps."""


def way_to_attach(clsact: Clsact) -> Callable[[int, int, TcDirection], Callable[[], object]]:
    """Attaches through tcx, or through clsact on older kernels; what it returns detaches."""

    def by_tcx(program: int, ifindex: int, direction: TcDirection) -> Callable[[], object]:
        link = libbpf.link_create(program, ifindex, AttachType[f"TCX_{direction.name}"])
        return partial(os.close, link)

    def at_clsact(program: int, ifindex: int, direction: TcDirection) -> Callable[[], object]:
        loaded = LoadedProgram("lb_tests", program, libbpf.prog_info(program).id)
        clsact.attach(ifindex, direction, loaded)
        return partial(clsact.detach, ifindex, direction)

    return by_tcx if Probe().supports(Feature.TCX_LINK) else at_clsact


@pytest.fixture(scope="module")
def asker(programs: Loaded, machine: Node) -> Iterator[Asker]:
    """A process on the node, under the connect() hooks."""
    with asking(programs, machine, "asker") as made:
        yield made


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """Pins the test to one CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def whole_seconds() -> Iterator[None]:
    """Starts at the beginning of a second and waits until the seconds that the test used are over.

    On one CPU, because rate limits are per second and CPU.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    _await_next_second()
    yield
    os.sched_setaffinity(0, before)
    _await_next_second()


def _await_next_second() -> None:
    time.sleep(1 + CLOCK_TICK - time.monotonic() % 1)


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each family with each protocol."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=TCP_KINDS, ids=str)
def tcp(request: pytest.FixtureRequest) -> Kind:
    """TCP in each family."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=SCTP_KINDS, ids=str)
def sctp(request: pytest.FixtureRequest) -> Kind:
    """SCTP in each family."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=UDP_KINDS, ids=str)
def udp(request: pytest.FixtureRequest) -> Kind:
    """UDP in each family."""
    return request.param  # type: ignore[no-any-return]
