# SPDX-License-Identifier: Apache-2.0
"""Why each endpoint of a Service may or may not be chosen on this node, and all that the model says
of a Service as plain values, fit for JSON.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from ebpflb.model.address import format_address
from ebpflb.model.changes import Changes
from ebpflb.model.endpoint import EndpointSlice, PortEndpoint, endpoints_of
from ebpflb.model.node import Node
from ebpflb.model.plan import Choice, Frontend, FrontendKey, FrontendType
from ebpflb.model.service import ServiceName, ServicePort, TrafficPolicy
from ebpflb.model.traffic_policy import Hints, categorize, ready_near

Plain = dict[str, Any]


class Judged(NamedTuple):
    """Whether new connections may go to an endpoint from this node, and why."""

    endpoint: PortEndpoint
    is_candidate: bool
    why: str


def judge(
    port: ServicePort, endpoints: Sequence[PortEndpoint], node: Node, policy: TrafficPolicy
) -> tuple[Judged, ...]:
    """Every endpoint under one traffic policy, in the order given.

    Who is a candidate is categorize()'s answer; only the words are made here. A policy that no
    frontend of the port follows has no candidates.
    """
    sets = categorize(port, endpoints, node)
    is_local = policy is TrafficPolicy.LOCAL
    chosen = sets.local if is_local else sets.cluster
    explain = _why_local if is_local else _why_cluster
    is_used = port.uses_local_endpoints if is_local else port.uses_cluster_endpoints
    unused = f"no frontend of this port follows the policy {policy}"
    return tuple(
        Judged(each, each in chosen, explain(each, endpoints, node) if is_used else unused)
        for each in endpoints
    )


def _why_local(each: PortEndpoint, endpoints: Sequence[PortEndpoint], node: Node) -> str:
    here = each.endpoint.node_name
    if here != node.name:
        return f"on {f'node {here}' if here else 'no node'}, and the policy is Local"
    own = [other for other in endpoints if other.endpoint.node_name == node.name]
    return _why_condition(each, own, " on this node") or "ready, on this node"


def _why_cluster(each: PortEndpoint, endpoints: Sequence[PortEndpoint], node: Node) -> str:
    condition = _why_condition(each, endpoints, "")
    if condition:
        return condition
    hints, chosen = ready_near(endpoints, node)
    if hints is Hints.NONE:
        return f"ready{_why_no_hints(each, endpoints, node)}"
    place = node.name if hints is Hints.NODE else node.zone
    if each in chosen:
        return f"ready, its hints name this {hints}, {place}"
    target = each.endpoint
    hinted = target.node_hints if hints is Hints.NODE else target.zone_hints
    return f"its hints name {hints} {', '.join(hinted)}, those of others this {hints}, {place}"


def _why_no_hints(each: PortEndpoint, endpoints: Iterable[PortEndpoint], node: Node) -> str:
    """Why the zone that its hints name does not matter; empty for one without."""
    hinted = ", ".join(each.endpoint.zone_hints)
    if not hinted:
        return ""
    if not node.zone:
        why = f"node {node.name} has no zone label"
    elif all(other.endpoint.zone_hints for other in endpoints if other.endpoint.ready):
        why = f"none name this zone, {node.zone}"
    else:
        why = "some endpoints have none"
    return f"; its hints name zone {hinted}, and hints do not count: {why}"


def _why_condition(each: PortEndpoint, others: Iterable[PortEndpoint], where: str) -> str:
    """What its conditions mean; empty for one that is ready."""
    target = each.endpoint
    if target.ready:
        return ""
    if not target.terminating:
        return "not ready"
    if not target.serving:
        return "terminating, does not serve any more"
    if any(other.endpoint.ready for other in others):
        return f"terminating, and others are ready{where}"
    return f"terminating, but serves, and none is ready{where}"


def describe(changes: Changes, name: ServiceName) -> Plain | None:
    """All about a Service; None when there is none of that name.

    `frontends`: what it has; `lost`: what an older Service has instead. Ports come in order, each
    once for each family.
    """
    service = changes.service(name)
    if service is None:
        return None
    node = changes.node
    slices = sorted(changes.slices(name), key=attrgetter("name"))
    lost = (each for each in changes.conflicts() if each.loser == name)
    return {
        "namespace": name.namespace,
        "name": name.name,
        "node": {"name": node.name, "zone": node.zone},
        "ports": [_port(port, slices, node) for port in service.ports],
        "frontends": [_frontend(each) for each in changes.plan(name)],
        "lost": [{**_place(each.key), "winner": str(each.winner)} for each in lost],
    }


def _port(port: ServicePort, slices: Iterable[EndpointSlice], node: Node) -> Plain:
    endpoints = endpoints_of(port, slices)
    cluster = judge(port, endpoints, node, TrafficPolicy.CLUSTER)
    local = judge(port, endpoints, node, TrafficPolicy.LOCAL)
    return {
        "name": port.name.port,
        "protocol": port.name.protocol.name,
        "family": f"IPv{int(port.family)}",
        "cluster_ip": format_address(port.cluster_ip),
        "port": port.port,
        "node_port": port.node_port,
        "internal_policy": str(port.internal_policy),
        "external_policy": str(port.external_policy),
        "affinity_timeout": port.affinity_timeout,
        "source_ranges": list(port.source_ranges),
        "endpoints": [_endpoint(*both, node) for both in zip(cluster, local, strict=True)],
    }


def _endpoint(cluster: Judged, local: Judged, node: Node) -> Plain:
    target, port = cluster.endpoint
    return {
        "address": format_address(target.address),
        "port": port,
        "pod": target.pod,
        "node": target.node_name or "",
        "zone": target.zone,
        "on_this_node": target.node_name == node.name,
        "ready": target.ready,
        "serving": target.serving,
        "terminating": target.terminating,
        "node_hints": list(target.node_hints),
        "zone_hints": list(target.zone_hints),
        "Cluster": {"candidate": cluster.is_candidate, "why": cluster.why},
        "Local": {"candidate": local.is_candidate, "why": local.why},
    }


def _frontend(frontend: Frontend) -> Plain:
    """`policy`: which of the two judgements of its endpoints a choice follows."""
    inside = frontend.type is FrontendType.CLUSTER_IP
    internal, external = frontend.internal_policy, frontend.external_policy
    return {
        **_place(frontend.key),
        "type": str(frontend.type),
        "port_name": frontend.service.port,
        "this_node": _choice(frontend.local, internal if inside else TrafficPolicy.CLUSTER),
        "elsewhere": _choice(frontend.others, internal if inside else external),
        "internal_policy": str(internal),
        "external_policy": str(external),
        "affinity_timeout": frontend.affinity_timeout,
        "allowed_sources": [str(each) for each in frontend.allowed_sources],
        "masquerade": frontend.masquerade,
    }


def _choice(choice: Choice, policy: TrafficPolicy) -> Plain:
    return {
        "policy": str(policy),
        "backends": [
            {"address": format_address(each.address), "port": each.port, "local": each.local}
            for each in choice.backends
        ],
        "if_empty": str(choice.if_empty),
    }


def _place(key: FrontendKey) -> Plain:
    address, protocol = format_address(key.address), key.protocol.name
    return {"address": address, "port": key.port, "protocol": protocol}
