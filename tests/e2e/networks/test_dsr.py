# SPDX-License-Identifier: Apache-2.0
"""Direct server return between three nodes: pods see their clients, and reply to them directly.

Pods are on the second and the third node, so the first one forwards everything in tunnels.
"""

import errno
import json
import socket
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest
from scapy.contrib.geneve import GENEVE, GeneveOptions
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

from ebpflb.config.values import socket_address
from ebpflb.dataplane.flows.conntrack import FLOW_TABLES
from ebpflb.dataplane.layout.enums import CtFlag
from ebpflb.dataplane.layout.structs import LbConntrack
from ebpflb.lab import Lab, LabConfig, LabNode, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.attacks.forged import strangers
from tests.e2e.attacks.forged import udp as forged_udp
from tests.e2e.harness.attackers import Attacker, bystanders
from tests.e2e.harness.cluster import Cluster, address_of, built, lab_name, started
from tests.e2e.harness.command import ebpflb, metric, status
from tests.e2e.harness.in_force import pinned_maps, wait_in_force
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import PROTOCOLS, answers, names
from tests.e2e.harness.sockets import connected, echo, echoed, exchange, path_mtu
from tests.e2e.harness.waiting import wait_until, wait_until_equal

PORT = 6089
BODY = bytes(range(256)) * 4000
# The link's MTU minus the tunnel's headers.
ROOM = {4: 1500 - 68, 6: 1500 - 88}
HEADERS = {4: 28, 6: 48}
MANY, FORGED = 500, 500
TUNNEL_DROPS = 'ebpflb_dropped_total{interface="eth0",reason="tunnel"}'
KEY_DROPS = 'ebpflb_dropped_total{interface="eth0",reason="tunnel_key"}'
POD_DROPS = 'ebpflb_dropped_total{interface="pods",reason="tunnel"}'
KEYS = ("0123456789abcdef", "fedcba9876543210")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with built(LabConfig(lab_name(), nodes=3, pods=2)) as lab:
        yield lab


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "keys"
    path.write_text(KEYS[0])
    return path


@pytest.fixture(scope="module")
def edge(lab: Lab, key_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = ["--dsr", "all", "--dsr-key-file", str(key_file)]
    with started(lab, tmp_path_factory.mktemp("dsr"), options) as cluster:
        yield cluster
        assert all(agent.is_running() for agent in cluster.agents.values())


@pytest.fixture
def spec(edge: Cluster) -> Iterator[ServiceSpec]:
    """A Service with all pods but those of the first node, which every other node reaches in
    tunnels.
    """
    spec = edge.serve(edge.new("LoadBalancer"), elsewhere(edge.lab))
    wait_until(partial(all_see_the_client, edge, spec), "all nodes send in tunnels")
    yield spec
    edge.remove(spec)


def elsewhere(lab: Lab) -> list[Member]:
    return [*lab.pods_on("node2"), *lab.pods_on("node3")]


def seen_by(edge: Cluster, spec: ServiceSpec, node: LabNode, version: int) -> set[str]:
    found = answers(edge.lab.client, address_of(node, version), spec.node_port, times=20)
    return {str(each.get("client_address") or each.get("error")) for each in found}


def all_see_the_client(edge: Cluster, spec: ServiceSpec) -> bool:
    client = edge.lab.client
    return all(
        seen_by(edge, spec, node, version) == {address_of(client, version)}
        for node in edge.lab.nodes
        for version in edge.versions
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pods_elsewhere_see_the_client(edge: Cluster, spec: ServiceSpec, protocol: str):
    lab = edge.lab
    for version in edge.versions:
        places = [(address_of(node, version), spec.node_port) for node in lab.nodes]
        places.append((lab.ingress_ip(spec.number, version), spec.port))
        for place in places:
            found = answers(lab.client, *place, protocol)
            assert {each.get("pod") for each in found} == names(elsewhere(lab)), place
            clients = {each["client_address"] for each in found}
            assert clients == {address_of(lab.client, version)}, place


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_node_reaches_its_own_endpoints_by_another_node(
    edge: Cluster, spec: ServiceSpec, protocol: str
):
    """From its processes, from the endpoints themselves, and from other pods."""
    lab = edge.lab
    edge.serve(spec, [lab.pod("pod-2-1")])
    clients = [lab.node("node2"), lab.pod("pod-2-1"), lab.pod("pod-2-2")]
    for version in edge.versions:
        place = address_of(lab.node("node1"), version), spec.node_port
        for client in clients:
            found = answers(client, *place, protocol, times=5)
            assert {each.get("pod", each.get("error")) for each in found} == {"pod-2-1"}, client


def test_bulk_arrives_as_it_was_sent(edge: Cluster, spec: ServiceSpec):
    for version in edge.versions:
        for node in edge.lab.nodes:
            place = address_of(node, version), spec.node_port
            with connected(edge.lab.client, *place) as bulk:
                assert echo(bulk, BODY) == BODY


def test_connections_leave_room_for_the_tunnel(edge: Cluster, spec: ServiceSpec):
    for version in edge.versions:
        place = address_of(edge.lab.node("node1"), version), spec.node_port
        with connected(edge.lab.client, *place) as made:
            exchange(made)
            most = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            headers = 40 if version == 4 else 60
            # Linux counts the TCP timestamps, too.
            assert ROOM[version] - headers - 12 <= most <= ROOM[version] - headers


def test_a_datagram_that_is_too_big_gets_an_error(edge: Cluster, spec: ServiceSpec):
    client = edge.lab.client
    for version in edge.versions:
        place = address_of(edge.lab.node("node1"), version), spec.node_port
        with connected(client, *place, "udp") as made:
            forbid_fragments(made)
            made.send(bytes(ROOM[version] - HEADERS[version] + 1))
            wait_until_equal(partial(path_mtu, made), ROOM[version])
            with pytest.raises(OSError, match="too long") as raised:
                made.send(bytes(ROOM[version] - HEADERS[version] + 1))
            assert raised.value.errno == errno.EMSGSIZE
        client.exec(["ip", f"-{version}", "route", "flush", "cache"])


def forbid_fragments(made: socket.socket) -> None:
    """IP_MTU_DISCOVER and IPV6_MTU_DISCOVER with IP_PMTUDISC_DO, of linux/in.h."""
    if made.family == socket.AF_INET:
        made.setsockopt(socket.IPPROTO_IP, 10, 2)
    else:
        made.setsockopt(socket.IPPROTO_IPV6, 23, 2)


def test_long_datagrams_arrive_in_fragments(edge: Cluster, spec: ServiceSpec):
    text = bytes(range(97, 123)) * 160
    for version in edge.versions:
        place = address_of(edge.lab.node("node1"), version), spec.node_port
        with connected(edge.lab.client, *place, "udp") as made:
            assert echoed(made, text) == text


def test_no_connection_fails_while_agents_are_away(edge: Cluster, spec: ServiceSpec):
    assert isinstance(edge.agents, dict)
    with none_fails(edge, spec, held=True):
        for agent in edge.agents.values():
            agent.kill()
        for agent in edge.agents.values():
            agent.start()
        for agent in edge.agents.values():
            agent.wait_in_sync()


def test_no_connection_fails_while_pods_come_and_go(edge: Cluster, spec: ServiceSpec):
    lab = edge.lab
    with none_fails(edge, spec):
        for _ in range(3):
            edge.serve(spec, [lab.pod("pod-2-1"), lab.pod("pod-3-1")])
            edge.serve(spec, elsewhere(lab))


def test_no_connection_fails_to_what_the_pods_node_does_not_know_yet(
    edge: Cluster, spec: ServiceSpec
):
    """Until then it is masqueraded. Covers a new endpoint, and a new Service."""
    assert isinstance(edge.agents, dict)
    lab, client = edge.lab, edge.lab.client
    known, comes = lab.pod("pod-3-1"), lab.pod("pod-2-1")
    edge.serve(spec, [known])
    new = edge.new("LoadBalancer")
    behind = edge.agents["node2"]
    behind.kill()
    with none_fails(edge, spec) as loads:
        edge.serve(spec, [known, comes], wait=False)
        edge.serve(new, [comes], wait=False)
        wait_in_force([lab.node("node1")])
        loads.wait_for(comes)
        for version in edge.versions:
            assert seen_by(edge, new, lab.node("node1"), version) == {
                address_of(lab.node("node1"), version)
            }
        behind.start()
        behind.wait_in_sync()
        for version in edge.versions:
            assert seen_by(edge, new, lab.node("node1"), version) == {address_of(client, version)}
    edge.remove(new)


def test_explain_names_the_node(edge: Cluster, spec: ServiceSpec):
    lab, node = edge.lab, edge.lab.node("node1")
    for version in edge.versions:
        place = socket_address(address_of(node, version), spec.node_port)
        said = ebpflb(node, "explain", address_of(lab.client, version), place).stdout
        said = " ".join(said.split())
        for number in (2, 3):
            to = address_of(lab.node(f"node{number}"), version)
            assert f"sees the client, through a tunnel to its node {to} (DSR)" in said


def test_the_maps_and_the_status_say_where_tunnels_lead(edge: Cluster, spec: ServiceSpec):
    lab, node = edge.lab, edge.lab.node("node1")
    shown = ebpflb(node, "maps", "dump", "--service", f"default/{spec.name}", "-o", "json").stdout
    led = {
        (each["address"], each["tunnel_to"], frontend["dsr"])
        for frontend in json.loads(shown)
        if frontend["type"] != "ClusterIP"
        for each in frontend["others"]["backends"]
    }
    assert led == {
        (address_of(pod, version), address_of(lab.node(f"node{number}"), version), True)
        for version in edge.versions
        for number in (2, 3)
        for pod in lab.pods_on(f"node{number}")
    }
    tunnels = status(node)["agent"]["tunnels"]
    assert (tunnels["port"], tunnels["without"]) == (PORT, {})
    assert tunnels["peers"] == 2 * len(edge.versions)
    assert tunnels["pods"] == len(led)


# Outsiders cannot send tunnels


@pytest.mark.parametrize("who", ["LAN", "Internet"])
def test_a_tunnel_from_outside_is_dropped_and_counted(edge: Cluster, spec: ServiceSpec, who: str):
    """In the name of a node but without the key, or with the key but from another address."""
    lab, pod, node = edge.lab, edge.lab.pod("pod-2-1"), edge.lab.node("node2")
    member, key, drops = lab.underlay, KEYS[1], KEY_DROPS
    if who == "Internet":
        member, key, drops = lab.client, KEYS[0], TUNNEL_DROPS
    packets = []
    for version in edge.versions:
        target = address_of(node, version), PORT
        text = tunnel_to(lab, spec, pod, version, key)
        sources = strangers(version)
        if who == "LAN":
            sources = ((address_of(lab.node("node1"), version), end) for end in count(49152))
        packets += [(target[0], forged_udp(each, target, text)) for each in islice(sources, FORGED)]
    before = metric(node, drops)
    with bystanders(edge, spec) as others, others.unharmed(0):
        Attacker(who, member, len(packets)).send(packets)
        wait_until_equal(partial(metric, node, drops), before + len(packets))


def test_a_pod_gets_nothing_out_to_a_node(edge: Cluster, spec: ServiceSpec):
    """Although it knows the key: its own node drops the tunnel, whichever node it is for."""
    lab, pod, node = edge.lab, edge.lab.pod("pod-1-1"), edge.lab.node("node1")
    before = metric(node, POD_DROPS)
    targets = [
        (address_of(each, version), version) for each in lab.nodes for version in edge.versions
    ]
    for target, version in targets:
        with connected(pod, target, PORT, "udp") as made:
            made.send(tunnel_to(lab, spec, lab.pod("pod-2-1"), version))
    wait_until_equal(partial(metric, node, POD_DROPS), before + len(targets))


def test_no_connection_fails_while_keys_change(edge: Cluster, spec: ServiceSpec, key_file: Path):
    with none_fails(edge, spec, held=True):
        for keys in (KEYS, KEYS[::-1], KEYS[1:]):
            key_file.write_text("\n".join(keys))
            wanted = "".join(keys if len(keys) > 1 else 2 * keys)
            for node in edge.lab.nodes:
                wait_until_equal(partial(keys_in_force, node), wanted)
    key_file.write_text(KEYS[0])
    for node in edge.lab.nodes:
        wait_until_equal(partial(keys_in_force, node), 2 * KEYS[0])


def keys_in_force(node: LabNode) -> str:
    return (pinned_maps(node)["lb_tunnel_keys"].lookup(bytes(4)) or b"").hex()


def tunnel_to(lab: Lab, spec: ServiceSpec, pod: Member, version: int, key: str = KEYS[0]) -> bytes:
    """Geneve, its option, and the IP header of a packet with a forged source."""

    address = socket.inet_pton(
        socket.AF_INET if version == 4 else socket.AF_INET6, address_of(pod, version)
    )
    mapped = address if version == 6 else bytes(10) + b"\xff\xff" + address
    named = mapped + lab.config.port.to_bytes(2, "big")
    option = GeneveOptions(classid=0xFF6C, type=0x81, data=named + bytes(2) + bytes.fromhex(key))
    protocol = 0x0800 if version == 4 else 0x86DD
    inner = (IP if version == 4 else IPv6)(
        src=address_of(lab.node("node1"), version), dst=lab.ingress_ip(spec.number, version)
    )
    packet = GENEVE(critical=1, proto=protocol, options=[option]) / inner / UDP(dport=spec.port)
    return bytes(packet)


# A node that is removed


def test_connections_outlive_the_node_that_carried_them(edge: Cluster):
    lab = edge.lab
    spec = edge.serve(edge.new("LoadBalancer", {"scheduler": "maglev"}), elsewhere(lab))
    wait_until(partial(all_see_the_client, edge, spec), "all nodes send in tunnels")
    lab.client.exec(["sysctl", "-qw", "net.ipv4.fib_multipath_hash_policy=1"])
    lab.client.exec(["sysctl", "-qw", "net.ipv6.fib_multipath_hash_policy=1"])
    route_by(lab, "replace", spec, lab.nodes)
    try:
        options = {"count": MANY, "workers": MANY, "exchanges": 0, "interval": 1.0, "timeout": 20.0}
        loads = [
            lab.client.start_load(lab.ingress_ip(spec.number, version), spec.port, **options)
            for version in edge.versions
        ]
        wait_until(partial(is_connected, lab, spec), "all connections are open")
        assert carries(lab.node("node1"), MANY // 4)
        route_by(lab, "replace", spec, lab.nodes[1:])
        lab.underlay.exec(["ip", "link", "set", "node1", "down"])
        wait_until(partial(carries, lab.node("node2"), MANY // 8), "others carry it")
        results = [load.stop() for load in loads]
    finally:
        lab.underlay.exec(["ip", "link", "set", "node1", "up"])
        route_by(lab, "del", spec, lab.nodes[1:])
        edge.remove(spec)
    for result in results:
        assert (result.attempted, result.failed, result.errors) == (MANY, 0, {})
        assert set(result.pods) == names(elsewhere(lab))


def route_by(lab: Lab, verb: str, spec: ServiceSpec, nodes: tuple[LabNode, ...]) -> None:
    """The client's route to the load-balancer IPs, over several nodes by a hash of addresses and
    ports.
    """
    for version in lab.config.family.versions:
        hops = [word for node in nodes for word in ("nexthop", "via", address_of(node, version))]
        place = lab.ingress_ip(spec.number, version)
        way = [] if verb == "del" else hops
        lab.client.exec(["ip", f"-{version}", "route", verb, place, *way])


def is_connected(lab: Lab, spec: ServiceSpec) -> bool:
    """Whether the client has all its connections, in each family."""
    command = ["ss", "-Htn", "state", "established", "dport", f"= :{spec.port}"]
    opened = lab.client.exec(command).stdout.splitlines()
    return len(opened) == MANY * len(lab.config.family.versions)


def carries(node: LabNode, flows: int) -> bool:
    """Whether this many connections go from this node in tunnels."""
    maps = pinned_maps(node)
    values = (value for name in FLOW_TABLES for _, value in maps[name].items())
    found = [each for each in values if LbConntrack.from_buffer_copy(each).flags & CtFlag.LB_CT_DSR]
    return len(found) >= flows
