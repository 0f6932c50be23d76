# SPDX-License-Identifier: Apache-2.0
"""Limits with real connections: who is over one is refused or dropped, and nobody else notices."""

import json
import select
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.dataplane.view.counts import read_drops, sum_drops
from ebpflb.lab import LabNode, Member
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.words.scheduler import Scheduler
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.command import ebpflb, metric, status
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import PROTOCOLS, REFUSED, SILENCE_SECONDS, SILENT
from tests.e2e.harness.sockets import exchange, several, version_of
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.explained import explained, place
from tests.e2e.steps.sample import row_of, sampled

Way = tuple[Member, str, int]
PODS = ("pod-1-2", "pod-2-1")
SOURCES = pytest.mark.parametrize("source", ["pod-1-1", "node1", "client"])
# One limited, and one that is not to notice.
LIMITED = pytest.mark.parametrize(
    ("source", "other"), [("pod-1-1", "client"), ("client", "pod-1-1")]
)
EITHER = pytest.mark.parametrize("protocol", PROTOCOLS)


def serve(cluster: Cluster, spec: ServiceSpec | None = None, **limits: str) -> ServiceSpec:
    """A Service with these limits, or only these from now on."""
    wish = {name.replace("_", "-"): text for name, text in limits.items()}
    limited = replace(spec or cluster.new(), annotations=wish)
    return cluster.serve(limited, [cluster.lab.pod(name) for name in PODS])


def attempt(made: socket.socket, address: str, port: int) -> str:
    """The pod that answers, or an error's name."""
    try:
        made.connect((address, port))
        return exchange(made)
    except OSError as error:
        return type(error).__name__


@contextmanager
def opened(
    way: Way, protocol: str, count: int, seconds: float | None = None
) -> Iterator[tuple[list[socket.socket], list[str]]]:
    """So many sockets, one after the other, and what became of each."""
    member, address, port = way
    with several(member, version_of(address), protocol, count) as made:
        for each in made if seconds else ():
            each.settimeout(seconds)
        yield made, [attempt(each, address, port) for each in made]


def fate(way: Way) -> str:
    with opened(way, "tcp", 1) as (_, (found,)):
        return found


def wait_for(way: Way, *wanted: str) -> None:
    """Until a connection ends so."""
    wait_until(lambda: fate(way) in wanted, f"{' or '.join(wanted)} for {way[0].name}")


@EITHER
@SOURCES
def test_endpoints_get_as_many_connections_as_they_may_have(cluster, source, protocol):
    spec = serve(cluster, max_connections="3")
    for version in cluster.versions:
        way = cluster.way(spec, source, version)
        with opened(way, protocol, 8) as (made, found):
            assert Counter(found) == {PODS[0]: 3, PODS[1]: 3, REFUSED: 2}
            assert found[-2:] == [REFUSED] * 2
            if protocol == "tcp":
                made[0].close()
                wait_for(way, found[0])


def drops(node: LabNode) -> int:
    found = sum_drops(read_drops(pinned_maps(node)))
    return found[DropReason.LB_DROP_BACKENDS_FULL]


def connecting(made: socket.socket, way: Way, node: LabNode) -> None:
    """Begin to connect; return when the SYN was dropped."""
    before = drops(node)
    made.setblocking(False)
    made.connect_ex(way[1:])
    wait_until(lambda: drops(node) > before, "its SYN is dropped")
    made.settimeout(20)


@pytest.mark.parametrize("source", ["pod-1-1", "client"])
def test_what_is_dropped_gets_in_when_there_is_room(cluster, source):
    spec = serve(cluster, max_connections="1, drop")
    for version in cluster.versions:
        way = cluster.way(spec, source, version)
        with (
            opened(way, "tcp", 2) as (made, found),
            several(way[0], version, "tcp", 1) as (waiting,),
        ):
            assert sorted(found) == sorted(PODS)
            connecting(waiting, way, cluster.lab.node("node1"))
            made[0].close()
            assert select.select([], [waiting], [], 20)[1]
            assert exchange(waiting) == found[0]


@pytest.mark.parametrize("source", ["pod-1-1", "client"])
def test_datagrams_are_dropped_without_a_word(cluster, source):
    spec = serve(cluster, max_connections="1, drop")
    for version in cluster.versions:
        way = cluster.way(spec, source, version)
        with opened(way, "udp", 3, SILENCE_SECONDS) as (_, found):
            assert Counter(found) == {PODS[0]: 1, PODS[1]: 1, SILENT: 1}


@EITHER
@LIMITED
def test_a_client_has_as_many_connections_as_it_may_and_others_do_not_notice(
    cluster, source, other, protocol
):
    spec = serve(cluster, max_connections_per_client="2")
    for version in cluster.versions:
        way = cluster.way(spec, source, version)
        with opened(way, protocol, 4) as (made, found):
            assert {*found[:2]} <= {*PODS}
            assert found[2:] == [REFUSED] * 2
            for each, count in ((other, 2), ("node1", 4)):
                with opened(cluster.way(spec, each, version), protocol, count) as (_, others):
                    assert {*others} <= {*PODS}, each
            if protocol == "tcp":
                made[0].close()
                wait_for(way, *PODS)


@EITHER
@LIMITED
def test_a_client_opens_connections_as_fast_as_it_may_and_others_do_not_notice(
    cluster, source, other, protocol
):
    spec = serve(cluster, new_connections_per_client="1/min, burst 3")
    for version in cluster.versions:
        way = cluster.way(spec, source, version)
        with opened(way, protocol, 5) as (_, found):
            assert {*found[:3]} <= {*PODS}
            assert found[3:] == [REFUSED] * 2
        with opened(cluster.way(spec, other, version), protocol, 2) as (_, others):
            assert {*others} <= {*PODS}
    serve(cluster, spec, new_connections_per_client="1/min, burst 4, drop")
    for version in cluster.versions:
        way = cluster.way(spec, source, version)
        with opened(way, protocol, 5, SILENCE_SECONDS) as (_, found):
            assert {*found[:4]} <= {*PODS}
            assert found[4] == SILENT


@contextmanager
def another_address(member: Member, text: str, version: int) -> Iterator[str]:
    """A member's further address, beside its own one."""
    own = address_of(member, version)
    (link,) = json.loads(member.exec(["ip", "-j", "addr", "show", "to", own]).stdout)
    place = [f"{text}/{24 if version == 4 else 64}", "dev", link["ifname"]]
    member.exec(["ip", "addr", "add", *place, *["nodad"] * (version == 6)])
    try:
        yield text
    finally:
        member.exec(["ip", "addr", "del", *place])


@pytest.mark.parametrize("version", [4, 6])
def test_an_ipv4_address_is_a_client_and_a_network_of_ipv6(cluster, version):
    spec = serve(cluster, max_connections_per_client="2")
    way = cluster.way(spec, "client", version)
    own = address_of(way[0], version)
    other = own.rpartition(".")[0] + ".99" if version == 4 else own.rpartition(":")[0] + ":99"
    with (
        opened(way, "tcp", 2) as (_, found),
        another_address(way[0], other, version) as source,
        several(way[0], version, "tcp", 1) as (made,),
    ):
        assert {*found} <= {*PODS}
        made.bind((source, 0))
        answer = attempt(made, *way[1:])
        assert answer in PODS if version == 4 else answer == REFUSED


def test_open_connections_stay_when_a_limit_changes(cluster):
    # Each pod has some of them.
    change = partial(serve, cluster, scheduler=Scheduler.ROUND_ROBIN.value)
    spec = change(cluster.new())
    ways = [cluster.way(spec, "pod-1-1", version) for version in cluster.versions]
    with opened(ways[0], "tcp", 6) as (four, before), opened(ways[-1], "tcp", 6) as (six, after):
        change(spec, max_connections="1")
        for way in ways:
            wait_for(way, REFUSED)
        assert [exchange(each) for each in (*four, *six)] == before + after
        change(spec, max_connections="100")
        assert {fate(way) for way in ways} <= {*PODS}
        assert [exchange(each) for each in (*four, *six)] == before + after


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"max_connections": "0"}, "max-connections: want a number from 1 to"),
        ({"new_connections_per_client": "burst 5"}, "new-connections-per-client: must be NUMBER/s"),
    ],
)
def test_a_wrong_value_is_told_and_limits_nothing(cluster, limit, said):
    spec = serve(cluster, max_connections_per_client="2", **limit)
    for version in cluster.versions:
        with opened(cluster.way(spec, "pod-1-1", version), "tcp", 3) as (_, found):
            assert [each in PODS for each in found] == [True, True, False]
    misconfigured = status(cluster.lab.node("node1"))["agent"]["misconfigured"]
    assert said in "".join(misconfigured)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("source", ["pod-1-1", "client"])
def test_explain_says_who_is_over_a_limit(cluster, source, version):
    spec = serve(cluster, max_connections="2", new_connections_per_client="1/min, burst 4")
    way = cluster.way(spec, source, version)
    member, address, port = way
    target = place(address, port)
    ask = partial(explained, cluster.lab.node("node1"), address_of(member, version), target)
    assert ask(0)["kernel"]["limits"] == "the client may open 4 at once"
    with opened(way, "tcp", 3) as (_, found):
        told = ask(0)["kernel"]
        assert told["limits"] == "the client may open 1 at once"
        (full,) = (pod for pod, count in Counter(found).items() if count == 2)
        places = {address_of(cluster.lab.pod(each), version): each for each in PODS}
        states = {places[each["address"]]: each for each in told["backends"]}
        assert {each: state["full"] for each, state in states.items()} == {
            each: each == full for each in PODS
        }
        assert {each: state["chance"] for each, state in states.items()} == {
            each: float(each != full) for each in PODS
        }
        with opened(way, "tcp", 1):
            told = ask(1)["kernel"]
            assert (told["verdict"], told["reason"]) == ("refused", "client_new")
            serve(cluster, spec, max_connections="2")
            told = ask(1)["kernel"]
            assert (told["verdict"], told["reason"]) == ("refused", "backends_full")


@pytest.mark.parametrize("source", ["pod-1-1", "client"])
def test_top_services_flows_and_metrics_say_who_is_over_a_limit(cluster, source):
    spec = serve(cluster, max_connections="2", max_connections_per_client="3")
    node, way = cluster.lab.node("node1"), cluster.way(spec, source, 4)
    labels = f'namespace="default",service="{spec.name}",port="tcp",protocol="TCP"'
    series = f"ebpflb_service_full_endpoints{{{labels}}}"
    with opened(way, "tcp", 3) as (_, found):
        (full,) = (pod for pod, count in Counter(found).items() if count == 2)
        row = row_of(sampled(node, partial(fate, way)), spec)
        name = f"default/{source}" if source != "client" else way[0].ipv4
        assert row["troubles"] == [
            "1 of 4 endpoints full",
            f"{name} over its limit (client_open)",
        ]
        shown = first_frontend(node, spec)
        assert shown["limits"] == "2 open per endpoint, 3 open per client"
        states = {each["address"]: each["full"] for each in shown["local"]["backends"]}
        pods = [cluster.lab.pod(each) for each in PODS]
        assert states == {pod.ipv4: pod.name == full for pod in pods}
        wait_until(lambda: metric(node, series) == 1, "one full endpoint in metrics")
    flows = ebpflb(node, "flows", "--service", f"default/{spec.name}", "-o", "jsonl").stdout
    records = [json.loads(line) for line in flows.splitlines()]
    refused = [each["reason"] for each in records if each["event"] == "refused"]
    assert refused == ["client_open"]


def first_frontend(node: LabNode, spec: ServiceSpec) -> dict[str, Any]:
    asked = ("services", "--service", f"default/{spec.name}", "-o", "jsonl")
    found: dict[str, Any] = json.loads(ebpflb(node, *asked).stdout.splitlines()[0])
    return found
