# SPDX-License-Identifier: Apache-2.0
"""Which nodes handle a client's packets, and what to ask each of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import quote

from ebpflb.cli.explain_words import HOST, AddressOrName, AskedConnection, Destination
from ebpflb.config.values import socket_address
from ebpflb.errors import ClusterError
from ebpflb.kubectl.access import Access, ForbiddenError, Object
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import AskedAgents
from ebpflb.kubectl.flows import recent
from ebpflb.model.address import Family, Protocol, family_of, format_address, parse_address
from ebpflb.model.flow import Flow
from ebpflb.model.service import ServiceName


class NodeQuestion(NamedTuple):
    """SRC and DST of `ebpflb explain` for one node."""

    agent: RemoteAgent
    source: str
    target: str


def questions(asking: AskedAgents, asked: AskedConnection) -> list[NodeQuestion]:
    """A pod's packets are handled by its own node, those of an external client by any node.

    ConfigError, ClusterError.
    """
    client, destination = asked.client, asked.destination
    access, agents = asking.access, asking.agents
    to = written(destination)
    given = client_written(client)
    if client.name:
        try:
            node = _node_of(access, client.name)
        except ClusterError:
            if not asked.at:
                raise
            node, given = _last_seen(asking, client.name, asked.at)
        return [NodeQuestion(each, given, to) for each in _on(agents, node, str(client.name))]
    if not client.address:
        return [NodeQuestion(each, given, to) for each in agents]
    address = format_address(client.address)
    if node := _node_with(access, address):
        return [NodeQuestion(each, given, to) for each in _on(agents, node, address)]
    if destination.end.name:
        family = family_of(client.address)
        return list(_from_outside(access, agents, given, family, destination))
    return [NodeQuestion(each, given, to) for each in agents]


def client_written(client: AddressOrName) -> str:
    """SRC with its namespace."""
    if not client.address:
        return _with_port(str(client.name or HOST), client.port)
    address = format_address(client.address)
    return socket_address(address, int(client.port)) if client.port else address


def written(destination: Destination) -> str:
    """DST with its namespace."""
    end, protocol = destination
    if end.address:
        place = socket_address(format_address(end.address), int(end.port))
    else:
        place = _with_port(str(end.name), end.port)
    return f"{place}/{protocol.name.lower()}" if protocol else place


def _with_port(name: str, port: str) -> str:
    return f"{name}:{port}" if port else name


def _on(agents: Sequence[RemoteAgent], node: str, client: str) -> list[RemoteAgent]:
    chosen = [agent for agent in agents if agent.node == node]
    if not chosen:
        raise ClusterError(f"{client} is on node {node}, where no agent runs")
    return chosen


def _node_of(access: Access, name: ServiceName) -> str:
    """The node of a pod."""
    pod = access.get(f"/api/v1/namespaces/{quote(name.namespace)}/pods/{quote(name.name)}")
    node = str(pod.get("spec", {}).get("nodeName", ""))
    if not node:
        raise ClusterError(f"pod {name} is not scheduled yet")
    return node


def _last_seen(asking: AskedAgents, name: ServiceName, at: str) -> tuple[str, str]:
    """The node and the address of a pod that is gone, from its flows until then. ClusterError."""
    wanted = {"from": str(name), "since": "24h", "until": at, "limit": "1"}
    for flow in recent(replace(asking, failures=defaultdict(set)), wanted):
        if isinstance(flow, Flow) and flow.client and flow.client.address:
            return flow.node, flow.client.address
    raise ClusterError(f"pod {name} is gone, and no node has kept a flow of it until then")


def _node_with(access: Access, address: str) -> str:
    """The node with this address, or whose pod has it; empty if it is outside the cluster."""
    try:
        pods = access.items("/api/v1/pods", [("fieldSelector", f"status.podIP={address}")])
        for pod in pods:
            if pod.get("status", {}).get("phase") == "Running":
                return str(pod["spec"].get("nodeName", ""))
        nodes = _node_addresses(access)
    except ForbiddenError:
        # So ask every node: each knows its own pods.
        return ""
    return next((node for node, known in nodes.items() if address in known), "")


def _node_addresses(access: Access) -> dict[str, list[str]]:
    return {
        node["metadata"]["name"]: [
            each["address"]
            for each in node.get("status", {}).get("addresses", ())
            if each["type"] == "InternalIP"
        ]
        for node in access.items("/api/v1/nodes")
    }


def _from_outside(
    access: Access,
    agents: Sequence[RemoteAgent],
    source: str,
    family: Family,
    destination: Destination,
) -> Iterator[NodeQuestion]:
    """For a Service's name, ask about the addresses that clients outside can reach, by family.

    These are its load-balancer and external IPs, on every node, else its NodePort on each node; if
    the Service has neither, ask by its name.
    """
    name = destination.end.name or ServiceName("", "")
    service = access.get(f"/api/v1/namespaces/{quote(name.namespace)}/services/{quote(name.name)}")
    port = _port(service, name, destination)
    protocol = str(port.get("protocol", "TCP")).lower()
    if reachable := _of_family(_external_addresses(service), family):
        for address in reachable:
            place = f"{socket_address(address, int(port['port']))}/{protocol}"
            yield from (NodeQuestion(each, source, place) for each in agents)
    elif node_port := port.get("nodePort"):
        known = _node_addresses(access)
        for each in agents:
            for address in _of_family(known.get(each.node, ()), family)[:1]:
                place = f"{socket_address(address, int(node_port))}/{protocol}"
                yield NodeQuestion(each, source, place)
    else:
        yield from (NodeQuestion(each, source, written(destination)) for each in agents)


def _external_addresses(service: Object) -> list[str]:
    """Those whose packets come to nodes: not those of a load balancer that connects by itself."""
    ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    external = service["spec"].get("externalIPs") or ()
    served = [each["ip"] for each in ingress if "ip" in each and each.get("ipMode") != "Proxy"]
    return [*served, *external]


def _of_family(addresses: Iterable[str], family: Family) -> list[str]:
    return [each for each in addresses if family_of(parse_address(each)) is family]


def _port(service: Object, name: ServiceName, destination: Destination) -> Mapping[str, Any]:
    """The port in DST, or the only one. ClusterError."""
    wanted, protocol = destination.end.port, destination.protocol
    every: Sequence[Mapping[str, Any]] = service["spec"].get("ports") or ()
    if not every:
        raise ClusterError(f"Service {name} has no ports")
    ports = [
        each
        for each in every
        if wanted in ("", each.get("name"), str(each["port"]))
        and protocol in (None, Protocol[each.get("protocol", "TCP")])
    ]
    if len({each["port"] for each in ports}) == 1:
        return ports[0]
    known = ", ".join(each.get("name") or str(each["port"]) for each in every)
    raise ClusterError(f"which port of Service {name}? Use {name}:PORT, one of {known}")
