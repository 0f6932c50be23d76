# SPDX-License-Identifier: Apache-2.0
"""Endpoints that refuse connections or do not reply are ejected, and return after a trial."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import NamedTuple

import pytest

from ebpflb.dataplane.layout.structs import LbFailures
from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.lab import LabNode, Member
from ebpflb.lab.ask import Question, ask_at_once
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.model.address import Address, Protocol
from ebpflb.model.ejection import EjectionState
from ebpflb.model.service import ServiceName
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.command import ebpflb, metric, status
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import REFUSED
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.broken import VERDICTS, broken

# Of four endpoints with one broken, at most ONE_TRIAL of this many connections fail: 10^-12.
MANY = 120
ONE_TRIAL = 2
SECONDS = 4
# Each ejection lasts twice as long as the previous one.
LONGEST = 150.0
THRESHOLD = 3
# More than twice the agent's period.
LOOK_SECONDS = 2.5
OPTIONS = ("--ejection", str(THRESHOLD), "--ejection-time", f"{SECONDS}s")


@pytest.fixture(scope="module")
def cluster(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    logs = tmp_path_factory.mktemp("ejection")
    with started(own_lab, logs, OPTIONS, nodes=["node1"]) as cluster:
        yield cluster


@pytest.fixture
def spec(cluster: Cluster) -> Iterator[ServiceSpec]:
    made = cluster.serve(cluster.new(), cluster.lab.pods)
    yield made
    cluster.remove(made)


class Way(NamedTuple):
    """From a member to a frontend."""

    member: Member
    address: str
    port: int


def way(cluster: Cluster, spec: ServiceSpec, source: str, version: int = 4) -> Way:
    return Way(*cluster.way(spec, source, version))


def ask(way: Way, times: int = MANY) -> Counter[str]:
    """How many connections each pod answers, and how many fail with each error."""
    (found,) = ask_on([way], times)
    return found


def ask_on(ways: Sequence[Way], times: int = MANY) -> list[Counter[str]]:
    """The same on several paths of a member at once."""
    at_once = 8
    questions = [Question(*way[1:], "tcp", times // at_once, 3.0) for way in ways] * at_once
    found = ask_at_once(ways[0].member, questions)
    said = [[each.get("pod") or each["error"] for each in answers] for answers in found]
    return [Counter(chain(*said[number :: len(ways)])) for number in range(len(ways))]


def ejected(cluster: Cluster) -> int:
    return int(status(cluster.lab.node("node1"))["agent"]["ejected_endpoints"])


def wait_ejected(cluster: Cluster, *ways: Way) -> None:
    """Wait until an endpoint of each is ejected."""

    def are_ejected() -> bool:
        ask_on(ways, 16)
        return ejected(cluster) >= len(ways)

    wait_until(are_ejected, "an endpoint is ejected")


def ejection_states(node: LabNode, spec: ServiceSpec) -> dict[Address, EjectionState]:
    """The states of the endpoints in the maps, for TCP."""
    return {
        each.backend.address: each.backend.ejection
        for found in read_frontends(pinned_maps(node), ServiceName("default", spec.name))
        if found.frontend.key.protocol is Protocol.TCP
        for each in (*found.backends.values(), *found.draining)
    }


@pytest.mark.parametrize("how", VERDICTS)
@pytest.mark.parametrize(
    ("source", "pod"), [("pod-1-1", "pod-2-1"), ("node1", "pod-1-2"), ("client", "pod-2-1")]
)
def test_an_endpoint_that_fails_is_left_out_and_returns(cluster, spec, source, pod, how):
    ways = [way(cluster, spec, source, version) for version in cluster.versions]
    with broken(cluster.lab.pod(pod), how):
        wait_ejected(cluster, *ways)
        began = time.monotonic()
        said = ask_on(ways)
        trials = 1 + (time.monotonic() - began) // SECONDS
        for found in said:
            assert found[pod] == 0
            assert found[how] <= trials * ONE_TRIAL, found
            assert len(found) >= 3
    wait_until(lambda: all(each[pod] for each in ask_on(ways, 16)), "they are back", LONGEST)
    wait_until(lambda: not ejected(cluster), "nothing is ejected", LONGEST)
    assert all(found[pod] > ONE_TRIAL for found in ask_on(ways))


def test_most_endpoints_fail_and_half_of_them_stay(cluster, spec):
    here = way(cluster, spec, "pod-1-1")
    with ExitStack() as stack:
        for pod in cluster.lab.pods:
            if pod.name != "pod-1-1":
                stack.enter_context(broken(pod, REFUSED))
        wait_until(lambda: ask(here, 16) and ejected(cluster) == 2, "two are ejected")
        found = ask(here)
        assert found["pod-1-1"] > MANY // 8
        assert found[REFUSED] > MANY // 8


# Connections that no other endpoint ever sees.
SHORT_LIVED = """
import socket, sys, time
address, port = sys.argv[1], int(sys.argv[2])
is_ipv6 = ":" in address
level, option = (41, 16) if is_ipv6 else (0, socket.IP_TTL)
made = [socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET) for _ in range(48)]
for each in made:
    each.setsockopt(level, option, 1)
    each.setblocking(False)
    each.connect_ex((address, port))
time.sleep(2.5)
"""


def failing(cluster: Cluster) -> set[bytes]:
    """The indices of backends with as many failures as the threshold."""
    counted = pinned_maps(cluster.lab.node("node1"))["lb_failures"].items()
    return {
        index
        for index, value in counted
        if LbFailures.from_buffer_copy(value).in_a_row >= THRESHOLD
    }


def test_a_client_alone_cannot_have_endpoints_left_out(cluster, spec):
    others = [way(cluster, spec, source) for source in ("pod-1-1", "node1")]
    attacker = way(cluster, spec, "pod-1-2")
    for each in (*others, attacker):
        ask(each, 16)
    before = failing(cluster)
    attacker.member.exec(
        [sys.executable, "-I", "-S", "-c", SHORT_LIVED, attacker.address, str(attacker.port)]
    )
    # All but itself.
    assert len(failing(cluster) - before) == len(cluster.lab.pods) - 1
    time.sleep(LOOK_SECONDS)
    assert not ejected(cluster)


def test_open_connections_go_on(cluster, spec):
    here = way(cluster, spec, "pod-1-1")
    outside = way(cluster, spec, "client")
    one = cluster.lab.pod("pod-2-1")
    cluster.serve(spec, [one])
    with connected(*here) as first, connected(*outside) as second:
        assert [exchange(first), exchange(second)] == [one.name] * 2
        cluster.serve(spec, cluster.lab.pods)
        with broken(one, REFUSED):
            wait_until(
                lambda: ask(here, 16) and ask(outside, 16) and ejected(cluster),
                "both clients have seen it fail",
            )
            assert [exchange(first), exchange(second)] * 3 == [one.name] * 6


@pytest.mark.parametrize("ejection", [EjectionState.EJECTED, EjectionState.TRIAL])
def test_an_agent_that_is_away_and_comes_back(cluster, spec, ejection):
    agent, here = cluster.agents["node1"], way(cluster, spec, "client")
    with broken(cluster.lab.pod("pod-2-1"), REFUSED):
        wait_ejected(cluster, here)
        wait_until(
            lambda: ejection in ejection_states(agent.node, spec).values(),
            ejection.name,
        )
        agent.kill()
        # One that was ejected may be on trial by now.
        before = ejection_states(agent.node, spec)
        refused = sum(ask(here)[REFUSED] for _ in range(3))
        assert refused == (EjectionState.TRIAL in before.values())
        assert ejection_states(agent.node, spec) == before
        agent.start()
        agent.wait_in_sync()
        wait_ejected(cluster, here)
    wait_until(lambda: ask(here, 16)["pod-2-1"], "the endpoint is back", LONGEST)


def test_an_ejection_is_shown_by_every_view(cluster, spec):
    node, here = cluster.lab.node("node1"), way(cluster, spec, "pod-1-1")
    pod = cluster.lab.pod("pod-2-1")
    with broken(pod, REFUSED):
        wait_ejected(cluster, here)
        # As each ejection lasts longer, eventually all of them see it.
        failed = "ejected: connections to it from this node have failed"
        views = {
            ("maps", "dump", "--service", f"default/{spec.name}"): (pod.ipv4, "ejected"),
            ("explain", here[0].ipv4, f"{here[1]}:{here[2]}"): (failed,),
            ("top", "--once", "--interval", "0.1", "--backends", "-o", "wide"): (
                pod.ipv4,
                "ejected",
            ),
        }

        def shows(view: tuple[str, ...]) -> bool:
            ask(here, 16)
            said = ebpflb(node, *view).stdout.splitlines()
            return any(all(word in line for word in views[view]) for line in said)

        for view in views:
            wait_until(partial(shows, view), f"{view[0]} shows it", LONGEST)
        wait_until(partial(counts, node, here), "the metrics count it", LONGEST)


def counts(node: LabNode, here: Way) -> bool:
    ask(here, 16)
    is_counted = metric(node, "ebpflb_endpoint_ejections_total") >= 1
    return is_counted and metric(node, "ebpflb_ejected_endpoints") == 1


@pytest.mark.only_in(ejection="off")
def test_without_the_option_an_endpoint_that_fails_goes_on_getting_its_share(shared: Cluster):
    spec = shared.serve(shared.new(), shared.lab.pods)
    here = way(shared, spec, "pod-1-1")
    with broken(shared.lab.pod("pod-2-1"), REFUSED):
        for _ in range(3):
            assert ask(here)[REFUSED] > ONE_TRIAL
            time.sleep(1)
    assert not ejected(shared)
    shared.remove(spec)
