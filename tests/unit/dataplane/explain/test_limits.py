# SPDX-License-Identifier: Apache-2.0
"""What explain says of limits, from what endpoints and clients have of them now."""

import pytest

from ebpflb.dataplane.explain.hooks import at_socket, walk
from ebpflb.dataplane.explain.limits import MOST_TRIED
from ebpflb.dataplane.explain.lookups import Lookups, backend_key
from ebpflb.dataplane.explain.steps import Client, ClientKind
from ebpflb.dataplane.layout.enums import DropReason, NetnsFlag
from ebpflb.dataplane.layout.records import pack_index, pack_open
from ebpflb.dataplane.layout.structs import LbAffinity, LbClientKey, LbClientUse
from ebpflb.model.address import Protocol, format_address, parse_address
from ebpflb.model.extensions.limits import Limits, OpenLimit, rate_limit
from ebpflb.words.connections import Fate
from ebpflb.words.scheduler import Scheduler
from tests.unit.dataplane.desired import backends, frontend, key, named, weighted
from tests.unit.dataplane.explain.node import (
    CLIENT,
    NEAR,
    NODE,
    POD,
    UPLINK,
    VETH,
    Node,
    addr,
    route,
)

VIP = "10.96.0.1"
NOW = 1_000_000_000_000
SECOND = 1_000_000_000
TWO = backends(POD, NEAR, local=True)
PER_ENDPOINT = Limits(OpenLimit(10))
PER_CLIENT = Limits(per_client=OpenLimit(3))
# Five at once, and then one in 100 ms.
RATE = Limits(new_per_client=rate_limit(10, per_minute=False, burst=5))
HOST = Client(ClientKind.HOST, parse_address(NODE), NetnsFlag.LB_NETNS_HOST)
COVERED_POD = Client(ClientKind.POD, parse_address(POD), NetnsFlag.LB_NETNS_COVERED, 77, VETH)
BARE_POD = COVERED_POD._replace(netns_flags=NetnsFlag(0))
OUTSIDE = Client(ClientKind.OUTSIDE, parse_address(CLIENT), ifindex=UPLINK)


@pytest.fixture
def node(monkeypatch):
    monkeypatch.setattr("time.monotonic_ns", lambda: NOW)
    return Node()


def serve(node, limits, choice=TWO, **fields):
    node.serve(frontend(VIP, choice, limits=limits, counts_open=limits.counts_open, **fields))


def opened(node, text, count):
    index, _ = node.backend(text)
    node.maps["lb_open"].update(pack_index(index), pack_open(count))


def uses(node, text, **fields):
    _, record = node.backend(NEAR)
    entry = LbClientKey(service=record.service, client=addr(text))
    node.maps["lb_client_uses"].update(bytes(entry), bytes(LbClientUse(**fields)))


def dropping(limits):
    return Limits(*(each and each._replace(drops=True) for each in limits))


def chances(step):
    return {
        format_address(backend_key(each.backend.record).address): (each.chance, each.is_full)
        for each in step.candidates
    }


@pytest.mark.parametrize("client", [HOST, BARE_POD, COVERED_POD, OUTSIDE])
def test_full_endpoints_get_nothing(node, client):
    serve(node, PER_ENDPOINT)
    assert chances(node.ask(client, key(VIP))) == {POD: (0.5, False), NEAR: (0.5, False)}
    opened(node, NEAR, 10)
    step = node.ask(client, key(VIP))
    assert step.fate is Fate.TRANSLATED
    assert chances(step) == {POD: (1, False), NEAR: (0, True)}


@pytest.mark.parametrize(
    ("client", "place"), [(HOST, "tc egress of "), (OUTSIDE, "tc ingress of ")]
)
def test_if_all_are_full_connections_are_refused_or_dropped(node, client, place):
    for limits, fate, does in (
        (PER_ENDPOINT, Fate.REFUSED, "refuses"),
        (dropping(PER_ENDPOINT), Fate.DROPPED, "drops"),
    ):
        serve(node, limits)
        opened(node, POD, 11)
        opened(node, NEAR, 10)
        first, *others = walk(Lookups(node.maps), client, key(VIP), route)
        last = others[-1] if others else first
        assert (last.fate, last.reason) == (fate, DropReason.LB_DROP_BACKENDS_FULL)
        assert last.place.startswith(place)
        assert not others or first.why.endswith(f"left to tc, which {does}")


def test_of_many_full_ones_not_all_were_tried(node):
    many = backends(*(f"10.1.1.{number}" for number in range(MOST_TRIED + 1)))
    serve(node, PER_ENDPOINT, many)
    for number in range(MOST_TRIED + 1):
        opened(node, f"10.1.1.{number}", 10)
    assert node.ask(OUTSIDE, key(VIP)).fate is Fate.DROPPED


def test_hashes_and_weights_pass_full_ones(node):
    serve(node, PER_ENDPOINT, weighted(TWO, 9, 1))
    opened(node, POD, 10)
    assert chances(node.ask(OUTSIDE, key(VIP))) == {POD: (0, True), NEAR: (1, False)}
    serve(node, PER_ENDPOINT, scheduler=Scheduler.SOURCE_HASH, table_size=11)
    for full, other in ((POD, NEAR), (NEAR, POD)):
        opened(node, full, 10)
        opened(node, other, 0)
        assert chances(node.ask(OUTSIDE, key(VIP))) == {full: (0, True), other: (1, False)}


def test_affinity_to_a_full_endpoint_leads_to_another_one(node):
    serve(node, PER_ENDPOINT, affinity_timeout=60)
    index, record = node.backend(NEAR)
    entry = LbClientKey(service=record.service, client=addr(CLIENT))
    value = LbAffinity(backend=index, serial=record.serial, last_used=NOW)
    node.maps["lb_affinity"].update(bytes(entry), bytes(value))
    assert chances(node.ask(OUTSIDE, key(VIP)))[NEAR] == (1, False)
    opened(node, NEAR, 10)
    step = node.ask(OUTSIDE, key(VIP))
    assert step.affinity == "the client's last endpoint is full"
    assert chances(step) == {POD: (1, False), NEAR: (0, True)}


@pytest.mark.parametrize("limits", [PER_CLIENT, RATE])
def test_limits_of_clients_are_left_to_tc_where_it_covers_the_client(node, limits):
    serve(node, limits)
    steps = {
        client.kind: at_socket(Lookups(node.maps), client, key(VIP))
        for client in (HOST, COVERED_POD)
    }
    assert steps[ClientKind.POD].why == "left to tc, because the client's address decides"
    assert steps[ClientKind.HOST].fate is Fate.TRANSLATED
    at = "limits per client do not apply to this one, which connects at the socket"
    assert steps[ClientKind.HOST].limits == at
    assert at_socket(Lookups(node.maps), BARE_POD, key(VIP)).limits == at


@pytest.mark.parametrize(("client", "text"), [(COVERED_POD, POD), (OUTSIDE, CLIENT)])
def test_a_client_with_as_many_connections_as_it_may_have(node, client, text):
    serve(node, PER_CLIENT)
    assert node.ask(client, key(VIP)).limits == "the client has 0 open"
    uses(node, text, open=2)
    assert node.ask(client, key(VIP)).limits == "the client has 2 open"
    uses(node, text, open=3)
    step = node.ask(client, key(VIP))
    assert (step.fate, step.reason) == (Fate.REFUSED, DropReason.LB_DROP_CLIENT_OPEN)
    assert step.why.endswith(": 3 of 3")
    serve(node, dropping(PER_CLIENT))
    assert node.ask(client, key(VIP)).fate is Fate.DROPPED


@pytest.mark.parametrize(("client", "text"), [(COVERED_POD, POD), (OUTSIDE, CLIENT)])
def test_a_client_that_is_too_fast(node, client, text):
    serve(node, RATE)
    interval = SECOND // 10
    for due, left in ((0, 5), (NOW, 5), (NOW + 1, 4), (NOW + interval, 4), (NOW + 4 * interval, 1)):
        uses(node, text, due=due)
        assert node.ask(client, key(VIP)).limits == f"the client may open {left} at once"
    uses(node, text, due=NOW + 6 * interval)
    step = node.ask(client, key(VIP))
    assert (step.fate, step.reason) == (Fate.REFUSED, DropReason.LB_DROP_CLIENT_NEW)
    assert step.why.endswith(": 10/s, the next one in 0.2 s")
    serve(node, dropping(RATE))
    assert node.ask(client, key(VIP)).fate is Fate.DROPPED


def test_addresses_of_one_network_outside_are_one_client(node):
    pods = backends("fd00:1::1")
    vip = "fd00::1"
    limited = frontend(vip, pods, limits=PER_CLIENT, counts_open=True)
    node.serve(limited, frontend(VIP, TWO, service=named("other")))
    index = next(i for i, value in node.maps["lb_limits"].items())
    entry = LbClientKey(service=int.from_bytes(index, "little"), client=addr("2001:db8::"))
    node.maps["lb_client_uses"].update(bytes(entry), bytes(LbClientUse(open=3)))
    client = OUTSIDE._replace(address=parse_address("2001:db8::77"))
    assert node.ask(client, key(vip)).reason is DropReason.LB_DROP_CLIENT_OPEN
    other = client._replace(address=parse_address("2001:db8:0:1::77"))
    assert node.ask(other, key(vip)).limits == "the client has 0 open"


def test_both_limits_of_a_client_are_told(node):
    serve(node, Limits(None, OpenLimit(3), RATE.new_per_client))
    uses(node, CLIENT, open=-1, due=NOW)
    told = "the client has 0 open and may open 5 at once"
    assert node.ask(OUTSIDE, key(VIP)).limits == told


def test_processes_of_the_node_have_no_limits_per_client(node):
    target = key(VIP, protocol=Protocol.SCTP)
    name = named("web")._replace(protocol=Protocol.SCTP)
    node.serve(frontend(choice=TWO, key=target, service=name, limits=PER_CLIENT, counts_open=True))
    step = node.ask(HOST, target)
    assert step.fate is Fate.TRANSLATED
    assert step.limits == "limits per client do not apply to the node itself"
