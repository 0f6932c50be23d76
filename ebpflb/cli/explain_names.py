# SPDX-License-Identifier: Apache-2.0
"""SRC and DST of `ebpflb explain`: the addresses they stand for.

The agent, the maps and the API server resolve names of pods and Services.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ebpflb.cli.agent_client import NothingThereError, ask, stream
from ebpflb.cli.explain_words import AddressOrName, Destination, port_number
from ebpflb.config.settings import setting
from ebpflb.config.values import near
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.records import frontend_key_of
from ebpflb.dataplane.view.snapshot import Snapshot, read_snapshot
from ebpflb.errors import ConfigError, QueryError, SourceError
from ebpflb.from_json import from_json
from ebpflb.model.address import Address, Family, Protocol, family_of, parse_address
from ebpflb.model.explain import decode_key
from ebpflb.model.plan import FrontendKey, FrontendType
from ebpflb.model.service import ServiceName


class AgentModel:
    """The model of this node's agent, through the query socket; one connection per query."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def get(self, *where: str) -> Mapping[str, Any] | None:
        """The object at a path below /v1, None if there is no such object. QueryError."""
        if self._path is None:
            raise QueryError("there is no query socket (--query-socket)")
        try:
            found = ask(self._path, *where)
        except NothingThereError:
            return None
        except ValueError as error:
            raise QueryError(f"{self._path}: not an ebpflb agent ({error})") from error
        if not isinstance(found, dict):
            raise QueryError(f"{self._path}: not an ebpflb agent")
        return found

    def flows(self, **wanted: str) -> list[dict[str, Any]]:
        """The flow records that /v1/flows returns for these parameters. QueryError."""
        if self._path is None:
            return []
        return [from_json(line) for line in stream(self._path, ("flows",), wanted)]


class ClusterIp(NamedTuple):
    """One ClusterIP frontend of a Service."""

    key: FrontendKey
    port_name: str


def cluster_ips(snapshot: Snapshot, name: ServiceName) -> list[ClusterIp]:
    """The ClusterIPs in force for a Service, IPv4 first."""
    found = [
        ClusterIp(frontend_key_of(each.key), each.service.port)
        for each in snapshot.frontends
        if each.type is FrontendType.CLUSTER_IP and each.service[:2] == tuple(name)
    ]
    return sorted(found, key=lambda each: (family_of(each.key.address), each.key))


class NameLookup:
    """Resolves names to addresses. ConfigError for an unknown name."""

    def __init__(self, maps: MapSet, agent: AgentModel) -> None:
        self._maps = maps
        self._agent = agent

    def addresses(self, source: AddressOrName) -> list[Address]:
        """The addresses of SRC; none for the node itself."""
        if source.address:
            return [source.address]
        if source.name is None:
            return []
        known = self._known("pods", dict)
        found = known.get(str(source.name)) or _ask_api_server(source.name, known)
        return [parse_address(text) for text in found]

    def frontend(self, target: Destination, families: Iterable[Family]) -> FrontendKey:
        """The frontend that DST stands for, in the first of these families that has one."""
        end = target.end
        if end.address:
            port = port_number(end.port, end.port)
            return FrontendKey(end.address, port, target.protocol or Protocol.TCP)
        name = end.name or ServiceName("", "")
        found = _of_port(name, self._cluster_ips(name), end.port)
        found = _of_protocol(name, found, target.protocol)
        order = [*families, *Family]
        return min(found, key=lambda each: order.index(family_of(each.key.address))).key

    def _cluster_ips(self, name: ServiceName) -> Sequence[ClusterIp]:
        found = self._planned(name)
        if found:
            return found
        snapshot = read_snapshot(self._maps)
        found = cluster_ips(snapshot, name)
        if found:
            return found
        in_force = {f"{namespace}/{service}" for namespace, service, _ in snapshot.ports}
        services = {*in_force, *self._known("services", list)}
        if str(name) in services:
            raise ConfigError(f"Service {name} has no ClusterIP (headless, or not served here)")
        raise ConfigError(f"no Service {name}{near(str(name), services)}")

    def _planned(self, name: ServiceName) -> list[ClusterIp]:
        try:
            service = self._agent.get("services", *name)
        except QueryError:
            return []
        if service and service.get("left_out"):
            return [_left_out(each) for each in service["ports"]]
        return [
            ClusterIp(decode_key(each), each["port_name"])
            for each in (service["frontends"] if service else ())
            if each["type"] == FrontendType.CLUSTER_IP
        ]

    def _known(self, what: str, kind: type) -> Any:
        try:
            return (self._agent.get("names") or {}).get(what, kind())
        except QueryError:
            return kind()


def _left_out(port: Mapping[str, Any]) -> ClusterIp:
    """From an entry in the `ports` of a Service that another proxy serves."""
    protocol = Protocol[port["protocol"]]
    key = FrontendKey(parse_address(port["cluster_ip"]), port["port"], protocol)
    return ClusterIp(key, port["name"])


def _of_port(name: ServiceName, found: Sequence[ClusterIp], port: str) -> list[ClusterIp]:
    number = int(port) if port.isdigit() else 0
    if port:
        chosen = [each for each in found if number == each.key.port or port == each.port_name]
    else:
        chosen = list(found)
    if len({each.key.port for each in chosen}) == 1:
        return chosen
    ports = sorted({each.port_name or str(each.key.port) for each in found})
    problem = f"has no port {port!r}" if port else "has several ports"
    raise ConfigError(f"Service {name} {problem}: use {name}:PORT, one of {', '.join(ports)}")


def _of_protocol(
    name: ServiceName, found: Sequence[ClusterIp], protocol: Protocol | None
) -> list[ClusterIp]:
    """TCP by default, if the Service has the port for TCP."""
    there = sorted({each.key.protocol for each in found})
    wanted = protocol or there[0]
    chosen = [each for each in found if each.key.protocol is wanted]
    if chosen:
        return chosen
    protocols = ", ".join(each.name for each in there)
    raise ConfigError(f"Service {name} has that port for {protocols}, not for {wanted.name}")


def _ask_api_server(name: ServiceName, known: Iterable[str]) -> list[str]:
    """The addresses of a pod that is not an endpoint, from the API server."""
    from ebpflb.source.api import Api, ApiRequest, MissingError

    hint = near(str(name), known)
    problem = f"pod {name} is not an endpoint of a Service{hint}"
    try:
        api = Api(setting("kubeconfig", None, os.environ), setting("master", None, os.environ))
        path = f"/api/v1/namespaces/{name.namespace}/pods/{name.name}"
        pod: Any = api.get(ApiRequest(path, "pods", {}, verb="get"))
    except MissingError as error:
        raise ConfigError(f"no pod {name}{hint}") from error
    except (ConfigError, SourceError) as error:
        raise ConfigError(f"{problem}; give its address (API server: {error})") from error
    addresses = [str(each["ip"]) for each in pod.get("status", {}).get("podIPs", ())]
    if not addresses:
        raise ConfigError(f"pod {name} has no address yet")
    return addresses
