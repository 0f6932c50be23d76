# SPDX-License-Identifier: Apache-2.0
"""Random Services, EndpointSlices and Nodes from a seed, for the nodes of a lab."""

from collections.abc import Iterable
from random import Random
from typing import Any

from ebpflb.lab import Lab
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.words.scheduler import Scheduler

Objects = list[dict[str, Any]]

# Excludes the numbers and first NodePorts of permanent Services. Addresses follow from numbers.
_NUMBERS = range(300, 1500)
_NODE_PORTS = range(31500, 32700)
# External UDP ports, never drawn as client ports.
_PORTS = range(1, 20000)
_KINDS = ("ClusterIP", "NodePort", "LoadBalancer")
_POLICIES = ("Cluster", "Local")
_SCHEDULERS = [each.value for each in Scheduler if each is not Scheduler.MAGLEV]
# Its tables are large, so only every this many Services use it.
_RARELY = 8
_MOST_ENDPOINTS = 12


def draw_service(lab: Lab, chance: Random, number: int) -> Objects:
    """A Service of any kind with its slices. number: from 0; the same one changes the Service."""
    kind = chance.choice(_KINDS)
    node_port = 0 if kind == "ClusterIP" else _NODE_PORTS[number]
    spec: dict[str, Any] = {
        "sessionAffinity": chance.choice(("None", "ClientIP")),
        "internalTrafficPolicy": chance.choice(_POLICIES),
    }
    if kind != "ClusterIP":
        spec["externalTrafficPolicy"] = chance.choice(_POLICIES)
    if kind == "LoadBalancer":
        ranges = chance.sample(range(1, 200), chance.randrange(4))
        spec["loadBalancerSourceRanges"] = [f"192.0.{each}.0/24" for each in ranges]
    if not chance.randrange(3):
        external = [lab.ingress_ip(2000 + number, each) for each in lab.config.family.versions]
        spec["externalIPs"] = external
    port = chance.choice(_PORTS)
    scheduler = chance.choice(_SCHEDULERS) if number % _RARELY else Scheduler.MAGLEV.value
    wishes = {"scheduler": scheduler, "dsr": chance.choice(("true", "false"))}
    made = ServiceSpec(_name(number), _NUMBERS[number], kind, port, node_port, spec, wishes)
    objects = lab.service(made, chance.sample(lab.pods, chance.randrange(len(lab.pods) + 1)))
    for each in objects[1:]:
        _add_endpoints(each, lab, chance)
    return objects


def redraw_slices(lab: Lab, chance: Random, objects: Objects) -> Objects:
    """The same Service with other endpoints."""
    for each in objects[1:]:
        each["endpoints"] = []
        _add_endpoints(each, lab, chance)
    return objects


def draw_node(lab: Lab, chance: Random, number: int) -> Objects:
    """A Node that does not exist: nothing has its address or those of its pods."""
    versions = lab.config.family.versions
    host = 100 + number
    ranges = [f"10.9.{host}.0/24" if each == 4 else f"fdeb:9:{host:x}::/64" for each in versions]
    ranges = ranges[: chance.randint(1, len(ranges))]
    hosts = {each.version: each.underlay()[host] for each in lab.layout.ranges}
    addresses = [{"type": "InternalIP", "address": str(hosts[each])} for each in versions]
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"churn-node-{number}", "labels": {}},
            "spec": {"podCIDR": ranges[0], "podCIDRs": ranges},
            "status": {"addresses": addresses},
        }
    ]


def _name(number: int) -> str:
    return f"churn-{number}"


def _add_endpoints(slice_: dict[str, Any], lab: Lab, chance: Random) -> None:
    version = int(slice_["addressType"].removeprefix("IPv"))
    (ranges,) = (each for each in lab.layout.ranges if each.version == version)
    for host in _hosts(chance):
        node = chance.randint(1, lab.config.nodes)
        conditions = {"ready": True, "serving": True, "terminating": False}
        if not chance.randrange(4):
            conditions = {"ready": False, "serving": True, "terminating": True}
        slice_["endpoints"].append(
            {
                "addresses": [str(ranges.pods(node)[host])],
                "conditions": conditions,
                "nodeName": f"node{node}",
                "zone": lab.layout.zone(node),
            }
        )


def _hosts(chance: Random) -> Iterable[int]:
    return chance.sample(range(100, 250), chance.randrange(_MOST_ENDPOINTS))
