# SPDX-License-Identifier: Apache-2.0
"""Cases that the differential test leaves out: devices, routes, addresses, flows, and the
wording.
"""

import time

import pytest

from ebpflb.dataplane.explain.flow_hash import client_hash, flow_hash, place_of
from ebpflb.dataplane.explain.hooks import at_socket, walk
from ebpflb.dataplane.explain.known_flow import flows_of, sockets_to
from ebpflb.dataplane.explain.lookups import Lookups, backend_key
from ebpflb.dataplane.explain.steps import LISTENER, Client, ClientKind, ClientSide
from ebpflb.dataplane.flows.settings import write_service_nets
from ebpflb.dataplane.kernel.sock_diag import SockDiag
from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    CtFlag,
    CtState,
    DeviceKind,
    Direction,
    DropReason,
    Hook,
    NetnsFlag,
    SettingFlag,
)
from ebpflb.dataplane.layout.structs import (
    LbAffinity,
    LbClientKey,
    LbConnection,
    LbConnPlace,
    LbConntrack,
    LbSettings,
    LbSocket,
    LbSocketKey,
    u32,
)
from ebpflb.model.address import WILDCARD, Family, Protocol, format_address, parse_address
from ebpflb.model.maglev import lookup_table
from ebpflb.model.plan import Choice, FrontendKey, FrontendType, IfEmpty
from ebpflb.model.service import TrafficPolicy
from ebpflb.words.connections import Fate
from ebpflb.words.scheduler import Scheduler
from tests.unit.dataplane.desired import ALLOWED, backends, frontend, key, named, weighted
from tests.unit.dataplane.explain.node import (
    CLIENT,
    NEAR,
    NODE,
    OTHER_NODE,
    POD,
    REMOTE,
    UPLINK,
    VETH,
    Node,
    addr,
    route,
    tuple_of,
)

VIP = "10.96.0.1"
COVERED, HOST = NetnsFlag.LB_NETNS_COVERED, NetnsFlag.LB_NETNS_HOST
DROP = Choice((), IfEmpty.DROP)
BOTH = Choice(
    (*backends(POD, NEAR, local=True).backends, *backends(REMOTE).backends), IfEmpty.REFUSE
)
NODE_PORT = FrontendKey(WILDCARD[Family.IPV4], 30000, Protocol.TCP)


def host():
    return Client(ClientKind.HOST, parse_address(NODE), HOST)


def pod(flags=COVERED, ifindex=VETH, port=0):
    return Client(ClientKind.POD, parse_address(POD), flags, 77, ifindex, port)


def outside(ifindex=UPLINK, port=0):
    return Client(ClientKind.OUTSIDE, parse_address(CLIENT), ifindex=ifindex, port=port)


def chances(step):
    return {
        format_address(backend_key(each.backend.record).address): each.chance
        for each in step.candidates
    }


@pytest.fixture
def node():
    return Node()


def test_a_process_of_the_node_is_translated_at_its_socket(node):
    node.serve(frontend(VIP, BOTH))
    step = node.ask(host(), key(VIP))
    assert (step.place, step.fate, step.side) == (
        "socket hook",
        Fate.TRANSLATED,
        ClientSide.THIS_NODE,
    )
    assert chances(step) == {POD: 1 / 3, NEAR: 1 / 3, REMOTE: 1 / 3}


@pytest.mark.parametrize(("client", "fate"), [(host(), Fate.TRANSLATED), (pod(), Fate.PASSES)])
def test_only_pods_under_tc_cover_are_left_to_where_connections_are_retried(node, client, fate):
    node.serve(frontend(VIP, BOTH, retry=True))
    step = at_socket(Lookups(node.maps), client, key(VIP))
    assert step.fate is fate
    assert ("retried" in step.why) is (fate is Fate.PASSES)


def test_a_pod_that_reaches_itself_sees_the_nodes_address(node):
    node.settings(SettingFlag.LB_SETTING_SOCKET_HOST)
    node.serve(frontend(VIP, BOTH))
    found = {
        format_address(backend_key(each.backend.record).address): each.rewrite
        for each in node.ask(pod(), key(VIP)).candidates
    }
    assert (found[POD].source, found[POD].hairpin) == (parse_address(NODE), True)
    assert found[NEAR].source is None
    node.maps["lb_settings"].update(
        bytes(4), bytes(LbSettings(flags=SettingFlag.LB_SETTING_SOCKET_HOST))
    )
    rewrites = [each.rewrite.reason for each in node.ask(pod(), key(VIP)).candidates]
    assert rewrites.count(DropReason.LB_DROP_NO_SNAT_ADDRESS) == 1


def test_a_backend_elsewhere_sees_the_address_of_the_device_it_is_reached_by(node):
    node.serve(frontend(VIP, backends(REMOTE)))
    (found,) = node.ask(outside(), key(VIP)).candidates
    assert found.rewrite.source == parse_address(NODE)
    node.device(UPLINK, DeviceKind.LB_DEVICE_HOST)
    step = node.ask(outside(), key(VIP))
    assert (step.fate, step.reason) == (Fate.DROPPED, DropReason.LB_DROP_NO_SNAT_ADDRESS)


def test_with_dsr_a_pod_elsewhere_sees_the_node_if_no_tunnel_leads_there(node):
    node.serve(frontend(VIP, BOTH, dsr=True, affinity_timeout=10))

    def lacking(client):
        found = {
            format_address(backend_key(each.backend.record).address): each.rewrite
            for each in node.ask(client, key(VIP)).candidates
        }
        return {text for text, each in found.items() if each.lacks_tunnel}, found[REMOTE]

    assert lacking(outside())[0] == {REMOTE}
    assert lacking(pod())[0] == lacking(host())[0] == set()
    node.maps["lb_pod_nodes"].update(parse_address(REMOTE), parse_address(OTHER_NODE))
    lacks, far = lacking(outside())
    assert (lacks, far.node, far.source) == (set(), parse_address(OTHER_NODE), None)
    assert lacking(pod())[1].node is None
    for name in ("lb_nodes", "lb_pod_nodes"):
        node.maps[name].update(outside().address, b"\1" * node.maps[name].value_size)
        assert lacking(outside())[1].node is None
        node.maps[name].delete(outside().address)
    node.maps["lb_pod_nodes"].delete(parse_address(REMOTE))
    node.serve(frontend(VIP, BOTH))
    assert lacking(outside())[0] == set()


@pytest.mark.parametrize(
    ("policy", "arrives", "source"),
    [
        pytest.param(TrafficPolicy.CLUSTER, UPLINK, NODE, id="back where it came from"),
        pytest.param(TrafficPolicy.CLUSTER, VETH, None, id="by another device"),
        pytest.param(TrafficPolicy.LOCAL, UPLINK, None, id="the client's address is promised"),
    ],
)
def test_a_pod_beside_its_node_sees_the_node(node, policy, arrives, source):
    node.device(VETH, DeviceKind.LB_DEVICE_HOST)
    node.serve(frontend(VIP, backends(NEAR, local=True), external_policy=policy))
    (found,) = node.ask(outside(arrives), key(VIP)).candidates
    assert found.rewrite.source == (parse_address(source) if source else None)


def test_backends_without_a_route_are_not_reached(node):
    node.serve(frontend(VIP, backends("203.0.113.7")))
    for client in (outside(), pod(), host()):
        step = node.ask(client, key(VIP))
        assert (step.fate, step.reason) == (Fate.DROPPED, DropReason.LB_DROP_NO_ROUTE)


def test_backends_with_a_route_are_what_is_left(node):
    node.serve(frontend(VIP, backends("203.0.113.7", REMOTE)))
    step = node.ask(host(), key(VIP))
    assert step.fate is Fate.TRANSLATED
    reasons = {each.rewrite.reason for each in step.candidates}
    assert reasons == {None, DropReason.LB_DROP_NO_ROUTE}


def test_what_is_masqueraded_whoever_asks(node):
    node.serve(frontend(VIP, backends(NEAR, local=True), masquerade=True))
    for client in (pod(), outside()):
        (found,) = node.ask(client, key(VIP)).candidates
        assert found.rewrite.source == parse_address(NODE)


@pytest.mark.parametrize(
    ("target", "fate", "why"),
    [
        (key(VIP, 81), Fate.REFUSED, "an address of Services, none of which has this port"),
        (key("10.1.0.9"), Fate.PASSES, "neither a Service address nor an address of this node"),
        (key("192.0.2.7", 81), Fate.PASSES, "without this port"),
        (key(NODE, 22), Fate.PASSES, "not a NodePort"),
        (key(OTHER_NODE, 30000), Fate.PASSES, "not accepted at this address"),
        (key("127.0.0.1", 30000), Fate.PASSES, "--localhost-nodeports"),
    ],
    ids=str,
)
def test_why_there_is_no_frontend(node, target, fate, why):
    node.serve(
        frontend(VIP, BOTH),
        frontend("192.0.2.7", BOTH, type=FrontendType.EXTERNAL_IP),
        frontend(choice=BOTH, key=NODE_PORT, type=FrontendType.NODE_PORT),
    )
    step = walk(Lookups(node.maps), host(), target, route)[0]
    assert step.fate is fate
    assert why in step.why


@pytest.mark.parametrize(
    ("flag", "wildcard", "address"),
    [
        (SettingFlag.LB_SETTING_LOCALHOST, "0.0.0.0", "127.0.0.1"),
        (SettingFlag.LB_SETTING_LOCALHOST6, "::", "::1"),
    ],
)
def test_loopback_has_node_ports_by_choice(node, flag, wildcard, address):
    node.serve(frontend(choice=BOTH, key=key(wildcard, 30000), type=FrontendType.NODE_PORT))
    assert "--nodeport-addresses names it" in node.ask(host(), key(address, 30000)).why
    node.settings(flag)
    assert node.ask(host(), key(address, 30000)).fate is Fate.TRANSLATED
    assert node.ask(pod(), key(address, 30000)).fate is Fate.PASSES


def test_what_drops_is_left_to_tc_where_there_is_some(node):
    node.serve(frontend(VIP, DROP))
    step = node.ask(host(), key(VIP))
    assert (step.fate, step.reason) == (Fate.DROPPED, DropReason.LB_DROP_NO_LOCAL_ENDPOINT)
    bare = node.ask(pod(NetnsFlag(0), ifindex=0), key(VIP))
    assert (bare.fate, bare.why) == (Fate.PASSES, "not translated")


def test_source_ranges_are_for_clients_whose_address_is_known(node):
    node.serve(
        frontend("192.0.2.9", BOTH, type=FrontendType.LOAD_BALANCER, allowed_sources=ALLOWED)
    )
    target = key("192.0.2.9")
    for client in (host(), pod(), outside()):
        step = node.ask(client, target)
        assert (step.fate, step.reason) == (Fate.DROPPED, DropReason.LB_DROP_SOURCE_RANGE)
    bare = node.ask(pod(NetnsFlag(0), ifindex=0), target)
    assert (bare.fate, bare.reason) == (Fate.REFUSED, DropReason.LB_DROP_SOURCE_RANGE)
    allowed = Client(ClientKind.OUTSIDE, ALLOWED[0].address, ifindex=UPLINK)
    assert node.ask(allowed, target).fate is Fate.TRANSLATED


def test_sctp_is_translated_at_tc_alone(node):
    target = key(VIP, protocol=Protocol.SCTP)
    name = named("web")._replace(protocol=Protocol.SCTP)
    node.serve(frontend(choice=BOTH, key=target, service=name))
    assert node.ask(pod(), target).fate is Fate.TRANSLATED
    assert node.ask(pod(NetnsFlag(0), ifindex=0), target).fate is Fate.PASSES
    assert node.ask(outside(ifindex=5), target).fate is Fate.PASSES


def test_an_address_that_no_service_has_does_not_leave_the_node(node):
    write_service_nets(node.maps["lb_service_nets"], ["10.96.0.0/16", "fd00:96::/112"])
    for text in ("10.96.0.77", "fd00:96::77"):
        step = node.ask(pod(), key(text))
        assert (step.fate, step.reason) == (Fate.DROPPED, DropReason.LB_DROP_UNUSED_ADDRESS)
    assert node.ask(pod(), key("fd00:97::77")).fate is Fate.PASSES


def test_a_client_stays_with_the_backend_of_its_affinity(node):
    node.serve(frontend(VIP, BOTH, affinity_timeout=60))
    index, record = node.backend(NEAR)
    entry = LbClientKey(service=record.service, client=addr(CLIENT))

    def remember(seconds_ago=0, serial=record.serial):
        used = time.monotonic_ns() - seconds_ago * 1_000_000_000
        value = LbAffinity(backend=index, serial=serial, last_used=used)
        node.maps["lb_affinity"].update(bytes(entry), bytes(value))
        return node.ask(outside(), key(VIP))

    assert "will stay with the endpoint it gets now" in node.ask(outside(), key(VIP)).affinity
    step = remember()
    assert (chances(step)[NEAR], chances(step)[REMOTE]) == (1, 0)
    assert f"stays with {NEAR}:8080" in step.affinity
    assert "has expired" in remember(seconds_ago=61).affinity
    step = remember(serial=record.serial + 1)
    assert chances(step)[NEAR] == 1 / 3
    assert "is no longer usable" in step.affinity


def test_a_flow_that_is_there_goes_on(node):
    node.serve(frontend(VIP, BOTH))
    index, record = node.backend(NEAR)
    client, target = pod(port=4000), key(VIP)
    original = tuple_of(POD, 4000, VIP, 80)
    to = tuple_of(POD, 4000, NEAR, 8080)
    entry = LbConntrack(
        to=to,
        backend=index,
        serial=record.serial,
        direction=Direction.LB_DIR_ORIGINAL,
        hook=Hook.LB_HOOK_POD_INGRESS,
        state=CtState.LB_CT_ESTABLISHED,
        created=time.monotonic_ns(),
        last_seen=time.monotonic_ns(),
    )
    node.maps["lb_conntrack"].update(bytes(original), bytes(entry))
    node.settings(SettingFlag.LB_SETTING_SOCKET_HOST)
    step = node.ask(client, target)
    assert (step.fate, step.why) == (Fate.TRANSLATED, "belongs to an existing flow")
    assert chances(step) == {NEAR: 1}
    (flow,) = flows_of(node.maps, pod(), target)
    assert (flow.client_port, flow.backend, flow.state) == (4000, NEAR, "established")
    assert not flows_of(node.maps, pod(port=4001), target)
    for flags, count in ((0, 1), (CtFlag.LB_CT_DSR, 3)):
        entry.state, entry.flags = CtState.LB_CT_ESTABLISHED | CtState.LB_CT_OTHER_FIN, flags
        node.maps["lb_conntrack"].update(bytes(original), bytes(entry))
        assert len(node.ask(client, target).candidates) == count
    entry.state, entry.flags = CtState.LB_CT_CLOSED, 0
    node.maps["lb_conntrack"].update(bytes(original), bytes(entry))
    assert len(node.ask(client, target).candidates) == 3
    entry.hook = Hook.LB_HOOK_RESERVED
    node.maps["lb_conntrack"].update(bytes(original), bytes(entry))
    assert walk(Lookups(node.maps), client, target, route)[1].why.startswith(
        "belongs to another NAT"
    )


def test_sockets_that_were_translated_are_counted(node):
    for cookie in range(3):
        reply = LbSocketKey(cookie=cookie, peer=addr(NEAR), port=8080, proto=17)
        reply.direction = Direction.LB_DIR_REPLY
        node.maps["lb_sockets"].update(bytes(reply), bytes(LbSocket(peer=addr(VIP), port=80)))
    for cookie in range(2):
        value = LbConnection(addr=addr(VIP), port=80, backend_addr=addr(NEAR), backend_port=8080)
        node.maps["lb_connections"].update(cookie.to_bytes(8, "little"), bytes(value))
    value = LbConnection(addr=addr(VIP), port=80, backend_addr=addr(NEAR), backend_port=8080)
    place = LbConnPlace(cookie=2, connection=value)
    node.maps["lb_conn_places"].update(bytes(u32(2)), bytes(place))
    assert sockets_to(node.maps, key(VIP, protocol=Protocol.UDP)) == [(NEAR, 8080, 3)]
    assert sockets_to(node.maps, key(VIP)) == [(NEAR, 8080, 3)]
    assert not sockets_to(node.maps, key(VIP, 81))


@pytest.mark.parametrize(("client", "place"), [(host(), 0), (pod(), 1), (outside(), 0)])
def test_a_listener_at_a_cluster_ip_of_the_node_wins(node, monkeypatch, client, place):
    node.serve(frontend(VIP, BOTH))
    node.sync.set_node_addresses({parse_address(VIP): AddrFlag.LB_ADDR_NODE})
    assert node.ask(client, key(VIP)).fate is Fate.TRANSLATED
    there = {(parse_address(VIP), key(VIP).port)}
    monkeypatch.setattr(SockDiag, "waiting", lambda _diag, _protocol: there)
    step = walk(Lookups(node.maps), client, key(VIP), route)[place]
    assert (step.fate, step.why) == (Fate.PASSES, LISTENER)


# Schedulers

HASHED = {"scheduler": Scheduler.MAGLEV, "table_size": 31}


@pytest.mark.parametrize("scheduler", [Scheduler.SOURCE_HASH, Scheduler.MAGLEV])
@pytest.mark.parametrize("table_size", [0, 31])
def test_a_hash_leads_to_one_backend(node, scheduler, table_size):
    node.serve(frontend(VIP, BOTH, scheduler=scheduler, table_size=table_size))
    step = node.ask(outside(port=40000), key(VIP))
    assert sorted(chances(step).values()) == [0, 0, 1]
    chosen = next(each for each in step.candidates if each.chance)
    place = format_address(backend_key(chosen.backend.record).address)
    assert step.scheduler == f"the hash leads to {place}:8080"
    source, vip = parse_address(CLIENT), (parse_address(VIP), 80, 6)
    is_maglev = scheduler is Scheduler.MAGLEV
    number = flow_hash(source, 40000, vip) if is_maglev else client_hash(source)
    looked_up = lookup_table(BOTH.backends, table_size) if table_size else range(3)
    expected = BOTH.backends[looked_up[place_of(number, table_size or 3)]]
    assert place == format_address(expected.address)
    leads = {node.ask(outside(port=port), key(VIP)).scheduler for port in range(40000, 40040)}
    assert (len(leads) == 1) is (scheduler is Scheduler.SOURCE_HASH)


def test_without_the_clients_port_maglev_leads_anywhere(node):
    node.serve(frontend(VIP, BOTH, **HASHED))
    for client in (outside(), host()):
        step = node.ask(client, key(VIP))
        assert list(chances(step).values()) == [1 / 3] * 3
        assert step.scheduler == "depends on the client's port, or on the socket at the socket hook"


def test_source_hash_knows_processes_of_the_node_and_not_every_pod(node):
    node.serve(frontend(VIP, BOTH, scheduler=Scheduler.SOURCE_HASH, table_size=31))
    assert node.ask(host(), key(VIP)).scheduler.startswith("the hash leads to ")
    pod = Client(ClientKind.POD, parse_address("10.1.0.77"))
    unknown = "depends on the client's network namespace, which is unknown"
    assert node.ask(pod, key(VIP)).scheduler == unknown
    assert node.ask(pod._replace(cookie=5), key(VIP)).scheduler.startswith("the hash leads to ")


def test_other_schedulers_have_nothing_to_say(node):
    node.serve(frontend(VIP, BOTH, scheduler=Scheduler.ROUND_ROBIN))
    step = node.ask(outside(port=40000), key(VIP))
    assert (step.scheduler, list(chances(step).values())) == ("", [1 / 3] * 3)


@pytest.mark.parametrize("scheduler", [Scheduler.RANDOM, Scheduler.LEAST_CONNECTIONS])
def test_weights_are_chances(node, scheduler):
    node.serve(frontend(VIP, weighted(BOTH, 6, 3, 1), scheduler=scheduler))
    step = node.ask(outside(port=40000), key(VIP))
    assert list(chances(step).values()) == [0.6, 0.3, 0.1]
    assert step.scheduler.endswith(", for its weight") is (scheduler is not Scheduler.RANDOM)


def test_without_the_clients_port_weights_are_the_chances_of_a_hash(node):
    node.serve(frontend(VIP, weighted(BOTH, 20, 7, 4), **HASHED))
    assert list(chances(node.ask(host(), key(VIP))).values()) == [20 / 31, 7 / 31, 4 / 31]
