# SPDX-License-Identifier: Apache-2.0
"""Masqueraded packets that the kernel routes: netfilter sees them, and may block either
direction.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from ebpflb.lab import Lab, Member
from ebpflb.lab.member import NodeAgent
from ebpflb.lab.namespaces import write_sysctls
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb, status
from tests.e2e.harness.questions import PROTOCOLS, REFUSED, SILENCE_SECONDS, SILENT
from tests.e2e.harness.sockets import connected, echo, exchange, opened
from tests.e2e.harness.waiting import wait_until

POD = "pod-2-1"
BODY = bytes(range(256)) * 4000
POLICY = """
add table inet enforced
add chain inet enforced forward { type filter hook forward priority 0; }
"""


# The kernel routes packets out of the device they arrived on. It would send clients redirects, and
# fewer other ICMP errors because of these.
NO_REDIRECTS = {f"ipv4/conf/{device}/send_redirects": "0" for device in ("all", "eth0")}


class Place(NamedTuple):
    version: int
    address: str
    port: int


@pytest.fixture(scope="module")
def routed(own_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The first node masquerades every client, and its kernel routes the masqueraded packets."""
    logs = tmp_path_factory.mktemp("routed")
    options = ["--masquerade-all", "--forwarding", "stack"]
    with own_lab.node("node1").entered():
        write_sysctls(NO_REDIRECTS)
    with started(own_lab, logs, options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def places(routed: Cluster) -> list[Place]:
    lab = routed.lab
    spec = routed.serve(routed.new(), [lab.pod(POD)])
    node = lab.node("node1")
    return [Place(each, address_of(node, each), spec.node_port) for each in routed.versions]


@contextmanager
def policy(lab: Lab, verdict: str, member: Member) -> Iterator[None]:
    """The node's netfilter applies a verdict to packets forwarded from, or sent to, a member."""
    node = lab.node("node1")
    addresses = {"ip": member.ipv4, "ip6": member.ipv6}
    rules = "".join(
        f"add rule inet enforced forward {family} saddr {address} {verdict}\n"
        for family, address in addresses.items()
    )
    node.exec(["nft", "-f", "-"], input=POLICY + rules)
    try:
        yield
    finally:
        node.exec(["nft", "delete", "table", "inet", "enforced"])


@contextmanager
def forwarding(cluster: Cluster, mode: str, logs: Path) -> Iterator[None]:
    """The first node's agent is replaced by one in this mode inside the block."""
    before = cluster.agents["node1"]
    options = ["--masquerade-all", "--forwarding", mode]
    other = NodeAgent(before.node, logs / f"{mode}.log", options)
    for old, new in ((before, other), (other, before)):
        old.stop()
        new.start()
        try:
            new.wait_in_sync()
            if new is other:
                yield
        except BaseException:
            new.kill()
            raise


def heard(
    member: Member, places: Iterable[Place], protocol: str = "tcp", seconds: float = 5.0
) -> set[str]:
    """The pods that reply, and the names of errors."""
    return {_asked(member, place, protocol, seconds) for place in places}


def _asked(member: Member, place: Place, protocol: str, seconds: float) -> str:
    try:
        with opened(member, place.version, protocol) as made:
            made.settimeout(seconds)
            made.connect((place.address, place.port))
            return exchange(made)
    except OSError as error:
        return type(error).__name__


def hears_nothing(member: Member, places: Iterable[Place], protocol: str = "tcp") -> bool:
    return heard(member, places, protocol, SILENCE_SECONDS) == {SILENT}


def test_status_shows_the_devices_and_the_way(routed):
    node = routed.lab.node("node1")
    said = ebpflb(node, "status").stdout
    assert "packets are routed by the kernel, through FORWARD; the option forwarding\n" in said
    found = status(node)["agent"]
    kinds = {each["name"]: (each["kind"], each["why"]) for each in found["devices"]}
    pod = ("workload", "a veth into another network namespace")
    assert kinds == {"eth0": ("host", "the default route"), "veth-1-1": pod, "veth-1-2": pod}
    assert found["forwarding"]["way"] == "stack"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["client", "pod-1-1", "pod-2-2"])
def test_every_client_gets_its_answers(routed, places, name, protocol):
    lab = routed.lab
    member = lab.client if name == "client" else lab.pod(name)
    assert heard(member, places, protocol) == {POD}


def test_bulk_arrives_as_it_was_sent(routed, places):
    for place in places:
        with connected(routed.lab.client, place.address, place.port) as bulk:
            assert echo(bulk, BODY) == BODY, place


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_policy_of_the_node_is_kept(routed, places, protocol):
    client = routed.lab.client
    with policy(routed.lab, "drop", client):
        assert hears_nothing(client, places, protocol)
    with policy(routed.lab, "reject", client):
        assert heard(client, places, protocol) == {REFUSED}
    assert heard(client, places, protocol) == {POD}


@contextmanager
def xfrm_policy(lab: Lab, target: Member) -> Iterator[None]:
    """IPsec of the first node drops packets to a member, which it would otherwise encrypt."""
    node = lab.node("node1")
    try:
        for address in target.addresses:
            node.exec(
                ["ip", "xfrm", "policy", "add", *f"dst {address} dir out action block".split()]
            )
        yield
    finally:
        node.exec(["ip", "xfrm", "policy", "flush"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["client", POD])
def test_policies_of_ipsec_are_kept(routed, places, protocol, name):
    lab = routed.lab
    target = lab.client if name == "client" else lab.pod(name)
    with xfrm_policy(lab, target):
        assert hears_nothing(lab.client, places, protocol)
    assert heard(lab.client, places, protocol) == {POD}


def test_a_redirect_bypasses_netfilter_and_ipsec(routed, places, tmp_path):
    lab, client = routed.lab, routed.lab.client
    with policy(lab, "drop", client), forwarding(routed, "redirect", tmp_path):
        with xfrm_policy(lab, lab.pod(POD)):
            assert heard(client, places) == {POD}
        with xfrm_policy(lab, client):
            assert heard(client, places) == {POD}


WRITERS = {
    "kube-router": (
        "iptables-legacy -N KUBE-ROUTER-FORWARD",
        "iptables-legacy -X KUBE-ROUTER-FORWARD",
    ),
    "Calico": ("iptables-nft -N cali-FORWARD", "iptables-nft -X cali-FORWARD"),
    "kindnet": (
        "nft add table inet kindnet-network-policies;"
        "nft add chain inet kindnet-network-policies postrouting",
        "nft delete table inet kindnet-network-policies",
    ),
    "IPsec": (
        "ip xfrm policy add dst 192.0.2.0/24 dir out action block",
        "ip xfrm policy flush",
    ),
    "Antrea": ("ip tuntap add antrea-gw0 mode tun", "ip link del antrea-gw0"),
}


def test_auto_follows_policy_engines_as_they_appear_and_disappear(routed, places, tmp_path):
    node, client = routed.lab.node("node1"), routed.lab.client

    def is_said(text: str) -> bool:
        return text in status(node)["agent"]["forwarding"]["why"]

    with forwarding(routed, "auto", tmp_path), policy(routed.lab, "drop", client):
        for engine, (write, remove) in WRITERS.items():
            assert is_said("no policy engine found")
            assert heard(client, places) == {POD}
            node.exec(["sh", "-ec", write])
            try:
                wait_until(partial(is_said, f"auto: {engine} "), f"{engine} is found")
                assert hears_nothing(client, places)
            finally:
                node.exec(["sh", "-ec", remove])
            wait_until(partial(is_said, "no policy engine found"), "nobody is found any more")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_flows_go_on_when_the_way_changes(routed, places, tmp_path, protocol):
    client = routed.lab.client
    with ExitStack() as stack:
        flows = [
            stack.enter_context(connected(client, each.address, each.port, protocol))
            for each in places
        ]
        assert {exchange(flow) for flow in flows} == {POD}
        with forwarding(routed, "redirect", tmp_path):
            assert {exchange(flow) for flow in flows} == {POD}
            late = [
                stack.enter_context(connected(client, each.address, each.port, protocol))
                for each in places
            ]
            assert {exchange(flow) for flow in late} == {POD}
        assert {exchange(flow) for flow in [*flows, *late]} == {POD}


def test_masquerade_rules_can_exempt_them_by_kube_proxys_mark(routed, places):
    client = routed.lab.client
    with policy(routed.lab, "meta mark & 0x4000 == 0 drop", client):
        assert heard(client, places) == {POD}


def test_a_pods_own_flows_are_seen_too(routed, places):
    pod = routed.lab.pod("pod-1-1")
    with policy(routed.lab, "drop", pod):
        assert hears_nothing(pod, places, "udp")
