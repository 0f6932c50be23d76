# SPDX-License-Identifier: Apache-2.0
"""Nodes with the rules of ip-masq-agent, as on GKE and AKS: backends see the same clients as
without.

After cmd/ip-masq-agent of kubernetes-sigs/ip-masq-agent and cmd/ip-masq-agent-v2 of
Azure/ip-masq-agent-v2: traffic to addresses outside the cluster is masqueraded.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

import pytest

from ebpflb.lab import Lab, LabNode, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.questions import PROTOCOLS, answers
from tests.e2e.harness.reached import server
from tests.e2e.networks.plugins import LONGEST, VERSIONS

NODE, OTHER_NODE, POD, HERE, REMOTE = "node1", "node2", "pod-1-1", "pod-1-2", "pod-2-1"
# An endpoint outside the cluster, whose traffic the rules masquerade.
FOREIGN = "underlay"
_LINK_LOCAL = {4: "169.254.0.0/16", 6: "fe80::/10"}
_TOOLS = {4: "iptables", 6: "ip6tables"}
# GKE's rule has no protocol, which newer versions of iptables require with ports.
_RANDOM = "-j MASQUERADE --to-ports 32768-65535 --random-fully"
_MASQUERADE = {
    "GKE": (f"-p tcp {_RANDOM}", f"-p udp {_RANDOM}"),
    "AKS": ("-j MASQUERADE",),
}
# One for each value of --forwarding.
_FORWARDING = {"GKE": "stack", "AKS": "redirect"}
_SOME = 5
WAYS = pytest.mark.parametrize(
    ("version", "protocol"), [(version, protocol) for version in VERSIONS for protocol in PROTOCOLS]
)


class Site(NamedTuple):
    """Nodes with the rules and agents; Services by their pod and externalTrafficPolicy.

    forwarding: the option of that name.
    """

    cluster: Cluster
    forwarding: str
    services: Mapping[tuple[str, str], ServiceSpec]


def rules(lab: Lab, version: int, flavour: str) -> str:
    """For iptables-restore: syncMasqRules(), with the cluster's ranges as nonMasqueradeCIDRs."""
    nodes = [f"{address_of(node, version)}/{LONGEST[version]}" for node in lab.nodes]
    inside = [_LINK_LOCAL[version], str(lab.layout.ranges_of(version).cluster()), *nodes]
    return "\n".join(
        [
            "*nat",
            ":IP-MASQ-AGENT - [0:0]",
            "-A POSTROUTING -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT",
            *(f"-A IP-MASQ-AGENT -d {each} -j RETURN" for each in inside),
            *(f"-A IP-MASQ-AGENT {each}" for each in _MASQUERADE[flavour]),
            "COMMIT\n",
        ]
    )


@pytest.fixture(scope="module", params=_MASQUERADE)
def flavour(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def masquerading(flavour: str, own_lab: Lab) -> Iterator[Lab]:
    for node, version in product(own_lab.nodes, VERSIONS):
        restore = [f"{_TOOLS[version]}-restore", "--noflush"]
        node.exec(restore, input=rules(own_lab, version, flavour))
    yield own_lab
    for node, version in product(own_lab.nodes, VERSIONS):
        node.exec([_TOOLS[version], "-t", "nat", "-F"])
        node.exec([_TOOLS[version], "-t", "nat", "-X"])


@pytest.fixture(scope="module")
def site(flavour: str, masquerading: Lab, tmp_path_factory) -> Iterator[Site]:
    lab, way = masquerading, _FORWARDING[flavour]
    options = ["--forwarding", way]
    with (
        server(lab.underlay, FOREIGN, lab.config.port),
        started(lab, tmp_path_factory.mktemp("masq"), options) as cluster,
    ):
        services = {
            (name, policy): cluster.serve(
                cluster.new(externalTrafficPolicy=policy), [lab.member(name)]
            )
            for name, policy in (
                *product((POD, HERE, REMOTE, FOREIGN), ["Cluster"]),
                (HERE, "Local"),
            )
        }
        yield Site(cluster, way, services)


class Sight(NamedTuple):
    """The client, the Service and its address, and the client that the pod must see: None is its
    gateway.
    """

    source: Member
    service: tuple[str, str]
    at: str
    seen: Member | None


def sights(site: Site) -> Iterator[Sight]:
    """As without the rules: docs/services.md names the source addresses.

    With `stack`, the rules masquerade traffic to the foreign endpoint before ebpflb does.
    """
    lab = site.cluster.lab
    node, pod, client = lab.node(NODE), lab.pod(POD), lab.client
    for name in (HERE, REMOTE):
        yield Sight(pod, (name, "Cluster"), "ClusterIP", pod)
        yield Sight(node, (name, "Cluster"), "ClusterIP", node if name == REMOTE else None)
    yield Sight(pod, (REMOTE, "Cluster"), OTHER_NODE, pod)
    yield Sight(client, (HERE, "Local"), NODE, client)
    yield Sight(client, (HERE, "Cluster"), NODE, client)
    yield Sight(client, (REMOTE, "Cluster"), NODE, node)
    yield Sight(client, (HERE, "Cluster"), OTHER_NODE, lab.node(OTHER_NODE))
    for source in (pod, node):
        yield Sight(source, (FOREIGN, "Cluster"), "ClusterIP", node)
    if site.forwarding == "redirect":
        yield Sight(client, (FOREIGN, "Cluster"), NODE, node)


def place(site: Site, sight: Sight, version: int) -> tuple[str, int]:
    lab, spec = site.cluster.lab, site.services[sight.service]
    if sight.at == "ClusterIP":
        return lab.cluster_ip(spec.number, version), spec.port
    return address_of(lab.node(sight.at), version), spec.node_port


@pytest.mark.only_in(dsr="off")  # pods see the client
@WAYS
def test_backends_see_whom_they_would_see_without_the_rules(site, version, protocol):
    gateway = site.cluster.lab.layout.ranges_of(version).pod_gateway(1)
    found, expected = {}, {}
    for sight in sights(site):
        key = (sight.source.name, *sight.service, sight.at)
        said = answers(sight.source, *place(site, sight, version), protocol, _SOME)
        found[key] = {(each.get("pod"), each.get("client_address")) for each in said}
        seen = address_of(sight.seen, version) if sight.seen else gateway
        expected[key] = {(sight.service[0], seen)}
    assert found == expected


@WAYS
def test_a_pod_reaches_itself(site, version, protocol):
    lab, spec = site.cluster.lab, site.services[POD, "Cluster"]
    said = answers(lab.pod(POD), lab.cluster_ip(spec.number, version), spec.port, protocol, _SOME)
    assert {each.get("pod") for each in said} == {POD}


def test_without_a_service_the_rules_masquerade(masquerading):
    """Proves that the rules are in force."""
    lab = masquerading
    with server(lab.underlay, FOREIGN, lab.config.port):
        for version, protocol in product(VERSIONS, PROTOCOLS):
            at = address_of(lab.underlay, version)
            said = answers(lab.pod(POD), at, lab.config.port, protocol)
            assert {each.get("client_address") for each in said} == {
                address_of(lab.node(NODE), version)
            }


def test_doctor_finds_nothing(site):
    node: LabNode = site.cluster.lab.node(NODE)
    done = ebpflb(node, "doctor")
    assert "0 errors, 0 warnings" in done.stdout, done.stdout
