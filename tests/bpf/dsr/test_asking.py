# SPDX-License-Identifier: Apache-2.0
"""A node probes another one for DSR support, over a veth between two namespaces.

The test's thread is on the probed node.
"""

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from ebpflb.dataplane.attach.links import TcDirection
from ebpflb.dataplane.attach.tc import Clsact
from ebpflb.dataplane.kernel.dsr_questions import DsrAnswer, DsrSockets
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink
from ebpflb.dataplane.layout.enums import AddrFlag, DropReason
from ebpflb.lab.namespaces import write_sysctls
from ebpflb.model.address import Family, family_of, parse_address
from tests.bpf.attach.network import Network, entered, ip
from tests.bpf.conftest import way_to_attach
from tests.bpf.dsr.tunnel import KEY, OTHER_KEY, PORT, set_keys
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.packets import mapped

ASKED = {Family.IPV4: "192.0.2.1", Family.IPV6: "2001:db8:2::1"}
ASKER = {Family.IPV4: "192.0.2.2", Family.IPV6: "2001:db8:2::2"}
OWN = {family: parse_address(text) for family, text in ASKER.items()}
NONCE = bytes(range(100, 116))
PATIENCE, SOON = 60.0, 0.3


class Asker:
    """The node that sends the probes."""

    def __init__(self, network: Network) -> None:
        self.namespace = network.add_pod("uplink")
        self.sockets = DsrSockets(PORT)
        _add_addresses(ASKED, "uplink")
        with entered(self.namespace):
            _add_addresses(ASKER, "eth0")

    def ask(self, family: Family, key: bytes = KEY) -> None:
        with entered(self.namespace):
            assert self.sockets.ask(OWN[family], parse_address(ASKED[family]), NONCE, key) == ""

    def answers(self, seconds: float = PATIENCE) -> list[DsrAnswer]:
        """The first replies, if any arrive before the timeout."""
        end, found = time.monotonic() + seconds, list[DsrAnswer]()
        while not found and time.monotonic() < end:
            found = list(self.sockets.answers())
        return found

    def hears_nothing(self) -> bool:
        """Whether no reply arrives soon."""
        return not self.answers(SOON)

    def await_answer(self, family: Family) -> None:
        """Probe until the two nodes know each other's MAC address and every reply has arrived."""
        self.ask(family)
        while self.hears_nothing():
            self.ask(family)
        while not self.hears_nothing():
            pass


def _add_addresses(addresses: Mapping[Family, str], device: str) -> None:
    for family, text in addresses.items():
        ip(f"addr add {text}/{24 if family is Family.IPV4 else '64 nodad'} dev {device}")


@pytest.fixture
def datapath(programs: Loaded) -> Datapath:
    datapath = Datapath(programs)
    datapath.reset()
    datapath.settings(dsr_port=PORT)
    set_keys(datapath, KEY)
    for text in ASKED.values():
        datapath.address(text, AddrFlag.LB_ADDR_NODE)
    for text in ASKER.values():
        datapath.maps["lb_nodes"].update(mapped(text), b"\1")
    return datapath


@pytest.fixture
def asker(datapath: Datapath, programs: Loaded, tmp_path) -> Iterator[Asker]:
    with ExitStack() as stack:
        asker = Asker(Network(stack))
        stack.callback(asker.sockets.close)
        netlink = stack.enter_context(Rtnetlink())
        ifindex = socket.if_nametoindex("uplink")
        datapath.device(ifindex, snat4=ASKED[Family.IPV4], snat6=ASKED[Family.IPV6])
        for direction in TcDirection:
            program = programs.programs[f"lb_host_{direction}"]
            stack.callback(way_to_attach(Clsact(netlink, tmp_path))(program, ifindex, direction))
        for family in Family:
            asker.await_answer(family)
        yield asker


@pytest.fixture(params=Family, ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


def test_a_node_that_takes_part_answers(asker: Asker, family: Family):
    asker.ask(family)
    assert asker.answers() == [(parse_address(ASKED[family]), NONCE)]


def test_one_without_dsr_is_silent(asker: Asker, datapath: Datapath, family: Family):
    datapath.settings(dsr_port=0)
    asker.ask(family)
    assert asker.hears_nothing()


def test_one_with_another_port_is_silent(asker: Asker, datapath: Datapath, family: Family):
    datapath.settings(dsr_port=PORT + 1)
    asker.ask(family)
    assert asker.hears_nothing()


def test_one_that_does_not_know_who_asks_is_silent(
    asker: Asker, datapath: Datapath, family: Family
):
    datapath.maps["lb_nodes"].delete_batch([mapped(ASKER[family])])
    for each in Family:
        asker.ask(each)
    (answer,) = asker.answers()
    assert family_of(answer.address) is not family


def test_keys_change_without_a_gap(asker: Asker, datapath: Datapath, family: Family):
    """While the two nodes are at different steps of the key change."""
    for asked, sent in (
        ((KEY, OTHER_KEY), KEY),
        ((OTHER_KEY, KEY), KEY),
        ((KEY, OTHER_KEY), OTHER_KEY),
    ):
        set_keys(datapath, *asked)
        asker.ask(family, sent)
        assert asker.answers() == [(parse_address(ASKED[family]), NONCE)]
    set_keys(datapath, OTHER_KEY)
    asker.ask(family, KEY)
    assert asker.hears_nothing()
    assert datapath.drops() == {DropReason.LB_DROP_TUNNEL_KEY: 1}


def test_questions_never_come_from_the_port_of_tunnels(
    asker: Asker, datapath: Datapath, family: Family
):
    """Replies go to the probe's source port; at the tunnel port they would be taken for tunnels."""
    datapath.settings(dsr_port=0)
    with entered(asker.namespace):
        write_sysctls({"ipv4/ip_local_port_range": f"{PORT} {PORT + 1}"})
    kind = socket.AF_INET if family is Family.IPV4 else socket.AF_INET6
    with socket.socket(kind, socket.SOCK_DGRAM) as asked:
        asked.bind((ASKED[family], PORT))
        asked.settimeout(PATIENCE)
        for _ in range(10):
            asker.sockets.close()
            asker.ask(family)
            _, source = asked.recvfrom(100)
            assert source[1] == PORT + 1
