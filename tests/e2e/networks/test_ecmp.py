# SPDX-License-Identifier: Apache-2.0
"""A node that spreads its flows over two uplinks, one of which fails."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from typing import NamedTuple

import pytest

from ebpflb.lab import LabConfig
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of, built, lab_name, started
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.questions import PROTOCOLS, Attempt, answers, others, results
from tests.e2e.harness.sockets import connected, exchange, wait_answered
from tests.e2e.networks.fabric import LINKS, NODE, SECOND, Crossing, Fabric
from tests.e2e.networks.plugins import VERSIONS

HERE, REMOTE = "pod-1-1", "pod-2-1"
_PORT = 80
# This many flows all use the same one of two paths once in 10^9 runs.
_MANY = 30
# This many flows all avoid the first one once in 10^4 runs.
_SOME = 7
WAYS = pytest.mark.parametrize(
    ("version", "protocol"), [(version, protocol) for version in VERSIONS for protocol in PROTOCOLS]
)
SERVERS = pytest.mark.parametrize("pod", [HERE, REMOTE])


class Site(NamedTuple):
    """The node with an agent, and a Service for each pod."""

    cluster: Cluster
    fabric: Fabric
    specs: dict[str, ServiceSpec]


@pytest.fixture(scope="module", params=[True, False], ids=["numbered", "unnumbered"])
def site(request, tmp_path_factory) -> Iterator[Site]:
    with built(LabConfig(lab_name(), pods=2)) as lab:
        fabric = Fabric(lab, numbered=request.param)
        with started(lab, tmp_path_factory.mktemp("ecmp")) as cluster:
            specs = {
                name: cluster.serve(cluster.new("LoadBalancer"), [lab.pod(name)])
                for name in (HERE, REMOTE)
            }
            yield Site(cluster, fabric, specs)


def outside(site: Site, version: int, pod: str) -> list[tuple[str, int]]:
    """Where the client reaches the pod's Service."""
    lab, spec = site.cluster.lab, site.specs[pod]
    return [
        (address_of(lab.node(NODE), version), spec.node_port),
        (lab.ingress_ip(spec.number, version), spec.port),
    ]


@SERVERS
@WAYS
def test_every_way_leads_to_the_pod(site, pod, version, protocol):
    lab = site.cluster.lab
    service = (lab.cluster_ip(site.specs[pod].number, version), _PORT)
    members = (lab.node(NODE), lab.pod(HERE), lab.pod("pod-1-2"), lab.pod("pod-2-2"))
    attempts = [Attempt(member, *service, protocol) for member in members]
    attempts += [
        Attempt(member, *place, protocol)
        for member, place in product((lab.client, lab.pod("pod-2-2")), outside(site, version, pod))
    ]
    assert others(results(attempts, times=_MANY), pod) == {}


@pytest.mark.only_in(dsr="off")  # pods see the client
@WAYS
def test_flows_are_spread_and_masqueraded_with_the_address_of_their_uplink(site, version, protocol):
    lab, fabric = site.cluster.lab, site.fabric
    expected = {Crossing(link, fabric.source(link, version)) for link in LINKS}
    address, port = outside(site, version, REMOTE)[0]
    with fabric.crossings(lab.pod(REMOTE), version) as seen:
        found = answers(lab.client, address, port, protocol, _MANY)
    assert {each.get("pod") for each in found} == {REMOTE}
    assert seen == expected
    assert {each["client_address"] for each in found} == {each.source for each in expected}


@pytest.mark.only_in(dsr="off")
@SERVERS
@WAYS
def test_flows_go_on_without_an_uplink(site, pod, version, protocol):
    """A connection masqueraded with an address of the uplink waits until that is restored."""
    lab, fabric = site.cluster.lab, site.fabric
    places = outside(site, version, pod)
    with ExitStack() as stack:
        flows = [
            stack.enter_context(connected(lab.client, *place, protocol)) for place in places * _SOME
        ]
        clients = [json.loads(exchange(flow, b"who"))["client_address"] for flow in flows]
        gone = {fabric.source(SECOND, version)} if fabric.is_numbered else set()
        waits = [protocol == "tcp" and client in gone for client in clients]
        with fabric.without(SECOND):
            for flow, is_waiting in zip(flows, waits, strict=True):
                if protocol == "udp":
                    wait_answered(flow, pod)
                elif not is_waiting:
                    assert exchange(flow) == pod
            new = [Attempt(lab.client, *place, protocol) for place in places]
            assert others(results(new, times=_SOME), pod) == {}
        for flow in flows:
            if protocol == "udp":
                # A datagram may be lost while the uplink is being restored.
                wait_answered(flow, pod)
            else:
                assert exchange(flow) == pod
    assert not all(waits)
    assert any(waits) == (protocol == "tcp" and pod == REMOTE and fabric.is_numbered)


def test_doctor_finds_nothing(site):
    done = ebpflb(site.cluster.lab.node(NODE), "doctor")
    assert "0 errors, 0 warnings" in done.stdout, done.stdout
