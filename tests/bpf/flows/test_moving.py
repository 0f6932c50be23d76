# SPDX-License-Identifier: Apache-2.0
"""One CPU moves a flow from one table to another while a second CPU looks it up in both."""

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import c_bool, c_uint64

import pytest

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES
from ebpflb.dataplane.layout.structs import LbConntrack, LbTuple
from ebpflb.dataplane.load.source_text import source_text
from tests.bpf.dsr.tunnel import PORT as DSR_PORT
from tests.bpf.dsr.tunnel import pod_elsewhere, served
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import ALONE, Loaded, load
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind
from tests.bpf.harness.services import node_addresses, node_port, remote_backend

MOVES = 2000
PORT = 2000
# Spins between the two lookups, to widen a race window of nanoseconds.
_LOOKUP = "lb_ct_short.lookup(&pkt->tuple)"
_STALL = """
static __always_inline int lb_stall(void)
{
	for (int i = 0; i < 40; i++)
		bpf_ktime_get_ns();
	return 0;
}
"""
_AFTER = "static __always_inline int lb_ct_is_syn("

_fork = multiprocessing.get_context("fork")


# Each function that moves a flow, and the code put in front of the call. It does what a faster CPU
# would do: move the same flow first, so that the kernel reuses the memory of its entries.
_MOVES = {
    "lb_conntrack_promote(pkt, entry, reply, 0)": "/* The client acknowledges the answer",
    "lb_dsr_establish(pkt, entry, is_udp)": "/*\n * Remembers how far the client has sent.",
}
_REUSE = """
static __always_inline void lb_reuse_{number}(struct lb_packet *pkt)
{{
	struct lb_conntrack *strange = LB_SCRATCH(entry);

	if (!strange)
		return;
	strange->to.dport = 1;
	strange->to.sport = 1;
	pkt->tuple.sport = bpf_htons(4001);
	lb_ct_short.update(&pkt->tuple, strange);
	pkt->tuple.sport = bpf_htons(4002);
	lb_ct_short.update(&pkt->tuple, strange);
	pkt->tuple.sport = bpf_htons(4000);
}}

"""


@pytest.fixture(scope="module")
def overtaken(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """lb_host_ingress, in which another packet of the flow always moves it first."""
    text = source_text()
    for number, (move, after) in enumerate(_MOVES.items()):
        assert text.count(f"{move};") == text.count(after) == 1
        text = text.replace(f"{move};", f"{move}, lb_reuse_{number}(pkt), {move};")
        text = text.replace(after, _REUSE.format(number=number) + after)
    return load(tmp_path_factory.mktemp("bpffs"), text, ["lb_host_ingress"], ALONE)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """lb_host_ingress, which spins before its lookup in lb_ct_short, the middle one of three."""
    text = source_text()
    assert text.count(_LOOKUP) == 1
    text = text.replace(_LOOKUP, f"(lb_stall(), {_LOOKUP})").replace(_AFTER, _STALL + _AFTER)
    return load(tmp_path_factory.mktemp("bpffs"), text, ["lb_host_ingress"], ALONE)


@contextmanager
def one_cpu() -> Iterator[None]:
    """The kernel reuses first what the same CPU freed last."""
    all_cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(all_cpus)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cpus)


class Moved:
    """A masqueraded connection from outside that is opened and closed in a loop."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind) -> None:
        self._datapath = datapath
        node_addresses(datapath, node)
        datapath.settings(snat_ports=((PORT, PORT), (PORT, PORT)))
        backend, index = remote_backend(datapath, kind)
        there = End(kind.net.client, 4000), node_port(datapath, kind, [index])
        back = backend, End(kind.net.overlay, PORT)
        self._there = {flags: bytes(kind.frame(*there, flags)) for flags in ("S", "A", "FA")}
        self._back = {flags: bytes(kind.frame(*back, flags)) for flags in ("SA", "A", "FA")}
        self._uplink, self._overlay = node.uplink.ifindex, node.overlay.ifindex
        # Odd while a connection with a reply exists.
        self._turn = _fork.RawValue(c_uint64, 0)
        self._is_over = _fork.RawValue(c_bool, False)
        self._found, self._missed = _fork.RawValue(c_uint64, 0), _fork.RawValue(c_uint64, 0)

    def move(self) -> None:
        self.request("S")
        self.reply("SA")
        self._turn.value += 1
        self.request("A")
        self.request("FA")
        self.reply("FA")
        self.request("A")
        self._turn.value += 1
        self._forget()

    def _forget(self) -> None:
        for table in (self._datapath.maps[name] for name in FLOW_TABLES):
            for key, _ in list(table.items()):
                table.delete(key)

    def is_found(self) -> bool:
        """Whether a reply reaches the client."""
        return self.reply("A")

    def look(self) -> None:
        """Runs in its own process: sends packets, each of which must match the flow."""
        while not self._is_over.value:
            turn = self._turn.value
            if turn % 2:
                is_found = self.is_found()
                if self._turn.value == turn:
                    counter = self._found if is_found else self._missed
                    counter.value += 1

    def counts(self) -> tuple[int, int]:
        """How many packets matched the flow, and how many did not, while the connection moved."""
        reader = _fork.Process(target=self.look)
        reader.start()
        try:
            moves = 0
            while moves < MOVES or not self._found.value:
                self.move()
                moves += 1
        finally:
            self._is_over.value = True
            reader.join()
        return self._found.value, self._missed.value

    def request(self, flags: str) -> None:
        self._is_translated(self._there[flags], self._uplink)

    def reply(self, flags: str) -> bool:
        """Whether the reply reaches the client."""
        return self._is_translated(self._back[flags], self._overlay)

    def _is_translated(self, frame: bytes, ifindex: int) -> bool:
        return self._datapath.run_bytes("lb_host_ingress", frame, ifindex=ifindex)[1] != frame


class MovedOneWay(Moved):
    """A connection that goes to another node in a tunnel."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind) -> None:
        super().__init__(datapath, node, kind)
        datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, mtu=1500)
        datapath.settings(dsr_port=DSR_PORT)
        there = End(kind.net.client, 4000), served(datapath, kind, pod_elsewhere(datapath, kind)[1])
        steps = ("S", "A", "PA", "FA")
        self._there = {flags: bytes(kind.frame(*there, flags)) for flags in steps}

    def move(self) -> None:
        self.request("S")
        self._turn.value += 1
        for flags in ("A", "PA", "A", "FA"):
            self.request(flags)
        self._turn.value += 1
        self._forget()

    def is_found(self) -> bool:
        return self._is_translated(self._there["PA"], self._uplink)


def ends(entries: Mapping[LbTuple, LbConntrack]) -> dict[LbTuple, bytes]:
    """Source and destination that packets leave with, by tuple."""
    return {key: bytes(entry.to) for key, entry in entries.items()}


@pytest.mark.parametrize("kind_of_flow", [Moved, MovedOneWay])
def test_a_packet_finds_a_connection_that_moves(
    slow: Loaded, node: Node, tcp: Kind, kind_of_flow: type[Moved]
):
    datapath = Datapath(slow)
    datapath.reset()
    found, missed = kind_of_flow(datapath, node, tcp).counts()
    assert found
    assert not missed


def test_who_comes_second_leaves_an_established_connection_as_it_is(
    overtaken: Loaded, node: Node, tcp: Kind
):
    datapath = Datapath(overtaken)
    datapath.reset()
    connection = Moved(datapath, node, tcp)
    with one_cpu():
        connection.request("S")
        connection.reply("SA")
        opening = ends(datapath.short())
        connection.request("A")
    assert ends(datapath.established()) == opening


def test_who_comes_second_leaves_a_connection_in_a_tunnel_as_it_is(
    overtaken: Loaded, node: Node, tcp: Kind
):
    datapath = Datapath(overtaken)
    datapath.reset()
    connection = MovedOneWay(datapath, node, tcp)
    with one_cpu():
        connection.request("S")
        opening = ends(datapath.short())
        for flags in ("A", "PA", "A"):
            connection.request(flags)
    assert ends(datapath.tunneled()) == opening
