# SPDX-License-Identifier: Apache-2.0
"""TCP connections balanced at the socket are counted with their exact bytes, however they end."""

from collections.abc import Iterator
from contextlib import contextmanager
from sys import byteorder

import pytest

from ebpflb.dataplane.layout.enums import FlowEnd, FlowEvent, FlowPath, FlowSource
from ebpflb.dataplane.layout.structs import LbConnection, LbConnPlace
from ebpflb.dataplane.load.source_text import source_text
from ebpflb.dataplane.view.counts import read_active
from ebpflb.model.address import Family, Protocol
from tests.bpf.flows.conversing import service, under_hooks
from tests.bpf.harness.conversing import WAYS, Conversing
from tests.bpf.harness.datapath import Datapath, addr
from tests.bpf.harness.loading import Loaded, load
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import End, Kind
from tests.bpf.harness.ring import Ring

# The last value that fits into 32 bits.
WRAPPED = 2**32 - 1
# More bytes than any connection here transfers.
FAR_AHEAD = 2**40
CLOSED, RESET = FlowEnd.LB_END_CLOSED, FlowEnd.LB_END_RESET
PLACES = "lb_conn_places"
# No socket has this cookie.
NOBODY = 1 << 62
# There is no route to it.
UNREACHABLE = {Family.IPV4: "203.0.113.9", Family.IPV6: "2001:db8:dead::9"}
# How each of conversing.WAYS ends, and the extra bytes in each direction.
OUTCOMES = {
    "client first": (CLOSED, 0, 0),
    "server first": (CLOSED, 0, 0),
    "both at once": (CLOSED, 0, 0),
    "half close, then data": (CLOSED, 0, 4),
    "half close, then data, then close": (CLOSED, 0, 4),
    "half close, then data, then reset": (CLOSED, 0, 4),
    "client resets": (RESET, 0, 0),
    "server resets": (RESET, 0, 0),
    "client leaves data": (RESET, 0, 4),
    "server leaves data": (RESET, 4, 0),
}


@pytest.fixture(scope="module")
def conversing(programs: Loaded, machine: Node) -> Iterator[Conversing]:
    """A process on the node, under all socket hooks."""
    with under_hooks(programs, machine, "conversing") as made:
        yield made


@pytest.fixture(scope="module")
def untold(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The hooks on a kernel where TCP does not report its connections."""
    text = f"#define LB_HAS_SOCK_OPS 0\n{source_text()}"
    names = ["lb_connect4", "lb_connect6", "lb_sock_release"]
    return load(tmp_path_factory.mktemp("bpffs"), text, names)


def connections(datapath: Datapath) -> dict[int, LbConnection]:
    """By their cookies."""
    places = (LbConnPlace.from_buffer_copy(each) for _, each in datapath.maps[PLACES].items())
    found = {place.cookie: place.connection for place in places if place.cookie}
    return found | others(datapath)


def others(datapath: Datapath) -> dict[int, LbConnection]:
    """Connections whose slot in the map was taken."""
    return {
        int.from_bytes(key, byteorder): LbConnection.from_buffer_copy(value)
        for key, value in datapath.maps["lb_connections"].items()
    }


def write(datapath: Datapath, place: LbConnPlace) -> None:
    index = place.cookie % datapath.maps[PLACES].max_entries
    datapath.maps[PLACES].update(u32(index), bytes(place))


@pytest.mark.parametrize("sizes", [(0, 0), (3, 100_000)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_connection_is_counted_to_the_byte(
    datapath: Datapath, conversing: Conversing, ring: Ring, tcp: Kind, way: str, sizes
):
    frontend, backend, index = service(datapath, tcp)
    end, more_sent, more_received = OUTCOMES[way]
    port = conversing.converse(way, frontend, backend, sizes)
    start, record = ring.take()
    assert (start.event, record.event) == (FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_END)
    assert (record.original.bytes, record.reply.bytes) == (
        sizes[0] + more_sent,
        sizes[1] + more_received,
    )
    assert FlowEnd(record.end) is end
    for each in (start, record):
        assert (each.path, each.source) == (FlowPath.LB_PATH_SOCKET, FlowSource.LB_FROM_THIS_NODE)
        assert (each.client, each.client_port) == (addr(tcp.net.node), port)
        assert (each.frontend, each.frontend_port) == (addr(frontend.address), frontend.port)
        assert (each.backend_addr, each.backend_port) == (addr(backend.address), backend.port)
        assert (each.backend, each.started) == (index, record.started)
    for name, at in (("lb_count_front", 1), ("lb_count_back", index)):
        counts = datapath.all_counts(name, at)
        assert (counts.connections, counts.failed) == (1, 0)
        assert (counts.original, counts.reply) == (record.original, record.reply)
    assert not connections(datapath)


def test_a_connection_without_a_free_slot_is_stored_elsewhere(
    datapath: Datapath, conversing: Conversing, ring: Ring, tcp: Kind
):
    frontend, backend, _ = service(datapath, tcp)
    taken = bytes(LbConnPlace(cookie=NOBODY))
    places = datapath.maps[PLACES]
    places.update_batch([(u32(index), taken) for index in range(places.max_entries)])
    conversing.converse("opens", frontend, backend, (0, 0))
    assert conversing.converse("peer", frontend, backend, (0, 0)) == frontend.port
    (connection,) = others(datapath).values()
    assert connection.started
    assert list(read_active(datapath.maps).oldest.values()) == [connection.started]
    conversing.converse("goes", frontend, backend, (0, 0))
    assert [each.event for each in ring.take()] == [FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_END]
    assert not others(datapath)
    assert {value for _, value in places.items()} == {taken}


def test_a_place_that_a_connection_has_left_is_all_zero(
    datapath: Datapath, conversing: Conversing, tcp: Kind
):
    frontend, backend, _ = service(datapath, tcp)
    conversing.converse("opens", frontend, backend, (0, 0))
    assert len(connections(datapath)) == 1
    assert not others(datapath)
    conversing.converse("goes", frontend, backend, (0, 0))
    places = datapath.maps[PLACES]
    assert {value for _, value in places.items()} == {bytes(places.value_size)}


def test_a_refused_connection_has_failed(
    datapath: Datapath, conversing: Conversing, ring: Ring, tcp: Kind
):
    frontend, _, index = service(datapath, tcp)
    conversing.converse("in vain", frontend, frontend, (0, 0))
    (record,) = ring.take()
    assert record.end == FlowEnd.LB_END_BACKEND_REFUSED
    assert (record.original.bytes, record.reply.bytes) == (0, 0)
    for name, at in (("lb_count_front", 1), ("lb_count_back", index)):
        assert datapath.all_counts(name, at).failed == 1


def test_a_connection_without_an_answer_has_failed(
    datapath: Datapath, conversing: Conversing, ring: Ring, tcp: Kind
):
    frontend = End(tcp.net.cluster_ip, 80)
    index = datapath.backend(End(tcp.net.client, 18080), Protocol.TCP)
    datapath.frontend(frontend, Protocol.TCP, local=[index])
    conversing.converse("in vain", frontend, frontend, (0, 0))
    (record,) = ring.take()
    assert record.end == FlowEnd.LB_END_NO_ANSWER
    assert datapath.all_counts("lb_count_front", 1).failed == 1


def test_a_connection_that_has_nowhere_to_go_leaves_nothing(
    datapath: Datapath, conversing: Conversing, tcp: Kind
):
    frontend, nowhere = End(tcp.net.cluster_ip, 80), End(UNREACHABLE[tcp.net.family], 18080)
    index = datapath.backend(nowhere, Protocol.TCP)
    datapath.frontend(frontend, Protocol.TCP, local=[index])
    conversing.converse("in vain", frontend, frontend, (0, 0))
    assert datapath.all_counts("lb_count_front", 1).connections == 1
    assert not connections(datapath)


def test_a_socket_that_fails_at_a_frontend_and_goes_elsewhere_counts_nothing_there(
    datapath: Datapath, conversing: Conversing, tcp: Kind
):
    frontend, backend, _ = service(datapath, tcp)
    conversing.converse("stays", frontend, backend, (0, 0))
    failing = End(frontend.address, 81)
    index = datapath.backend(End(UNREACHABLE[tcp.net.family], 18080), Protocol.TCP)
    datapath.frontend(failing, Protocol.TCP, local=[index])
    conversing.converse("elsewhere", failing, End(tcp.net.node, 18081), (0, 0))
    counts = datapath.all_counts("lb_count_back", index)
    assert (counts.connections, counts.failed) == (1, 0)
    assert (counts.original.packets, counts.reply.packets) == (0, 0)
    assert not connections(datapath)


def test_where_tcp_does_not_report_connections_last_from_connect_to_close(
    untold: Loaded, node: Node, tcp: Kind
):
    datapath = Datapath(untold)
    datapath.reset()
    frontend, backend, _ = service(datapath, tcp)
    with under_hooks(untold, node, "untold") as conversing:
        conversing.converse("opens", frontend, backend, (0, 0))
        found = read_active(datapath.maps)
        conversing.converse("goes", frontend, backend, (0, 0))
    assert list(found.flows.values()) == [1]
    assert all(found.oldest.values())
    assert not connections(datapath)


def test_a_long_connection_is_counted_while_it_lasts(
    datapath: Datapath, conversing: Conversing, ring: Ring, tcp: Kind
):
    frontend, backend, _ = service(datapath, tcp)
    conversing.converse("stays", frontend, backend, (0, 0))
    during = datapath.all_counts("lb_count_front", 1)
    assert during.original.bytes >= 100
    conversing.converse("goes", frontend, backend, (0, 0))
    (record,) = [each for each in ring.take() if each.event == FlowEvent.LB_FLOW_END]
    after = datapath.all_counts("lb_count_front", 1)
    assert (after.original, after.reply) == (record.original, record.reply)


@contextmanager
def altered_connection(datapath: Datapath) -> Iterator[LbConnection]:
    """The only connection there is, written back after the test has altered it."""
    ((cookie, connection),) = connections(datapath).items()
    yield connection
    write(datapath, LbConnPlace(cookie=cookie, connection=connection))


def test_packets_beyond_what_tcp_counts_in_32_bits_go_on(
    datapath: Datapath, conversing: Conversing, ring: Ring, tcp: Kind
):
    frontend, backend, _ = service(datapath, tcp)
    conversing.converse("stays", frontend, backend, (0, 0))
    counted = datapath.all_counts("lb_count_front", 1).original.packets
    with altered_connection(datapath) as connection:
        connection.original.packets = connection.reply.packets = WRAPPED
    conversing.converse("goes", frontend, backend, (0, 0))
    (record,) = [each for each in ring.take() if each.event == FlowEvent.LB_FLOW_END]
    after = datapath.all_counts("lb_count_front", 1)
    assert after.original.packets - counted == record.original.packets - WRAPPED
    assert 0 < after.original.packets - counted < 2**32
    assert record.reply.packets > WRAPPED


def test_a_fin_that_came_before_lost_bytes_does_not_lower_the_counters(
    datapath: Datapath, conversing: Conversing, ring: Ring, tcp: Kind
):
    frontend, backend, _ = service(datapath, tcp)
    conversing.converse("stays", frontend, backend, (0, 0))
    counted = datapath.all_counts("lb_count_front", 1).reply.bytes
    with altered_connection(datapath) as connection:
        connection.reply.bytes = FAR_AHEAD
    conversing.converse("goes", frontend, backend, (0, 0))
    (record,) = [each for each in ring.take() if each.event == FlowEvent.LB_FLOW_END]
    assert record.reply.bytes == FAR_AHEAD
    assert datapath.all_counts("lb_count_front", 1).reply.bytes == counted
