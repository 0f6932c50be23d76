# SPDX-License-Identifier: Apache-2.0
"""Names of pods and Services -> addresses: asked of the agent, of the maps, of the API server."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ebpflb.cli.explain_agent import AgentModel
from ebpflb.cli.explain_question import Place, Target, port_number
from ebpflb.config.settings import setting
from ebpflb.config.values import near
from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.explain.service_names import ClusterIp, cluster_ips, service_names
from ebpflb.errors import ConfigError, QueryError, SourceError
from ebpflb.model.address import Address, Family, Protocol, family_of, parse_address
from ebpflb.model.plan import FrontendKey, FrontendType
from ebpflb.model.service import ServiceName


class Names:
    """What this node knows of names. ConfigError for a name that nobody knows."""

    def __init__(self, lookups: Lookups, agent: AgentModel) -> None:
        self._lookups = lookups
        self._agent = agent

    def addresses(self, source: Place) -> list[Address]:
        """Of SRC; none for the node itself."""
        if source.address:
            return [source.address]
        if source.name is None:
            return []
        known = self._known("pods", dict)
        found = known.get(str(source.name)) or _ask_api_server(source.name, known)
        return [parse_address(text) for text in found]

    def frontend(self, target: Target, families: Iterable[Family]) -> FrontendKey:
        """What DST means, in the first of these families that it has."""
        place = target.place
        if place.address:
            port = port_number(place.port, place.port)
            return FrontendKey(place.address, port, target.protocol or Protocol.TCP)
        name = place.name or ServiceName("", "")
        found = _of_port(name, self._cluster_ips(name), place.port)
        found = _of_protocol(name, found, target.protocol)
        order = [*families, *Family]
        return min(found, key=lambda each: order.index(family_of(each.key.address))).key

    def _cluster_ips(self, name: ServiceName) -> Sequence[ClusterIp]:
        found = self._told(name) or cluster_ips(self._lookups, name)
        if found:
            return found
        services = {*map(str, service_names(self._lookups.maps)), *self._known("services", list)}
        if str(name) in services:
            raise ConfigError(f"Service {name} has no ClusterIP (headless, or not served here)")
        raise ConfigError(f"no Service {name}{near(str(name), services)}")

    def _told(self, name: ServiceName) -> list[ClusterIp]:
        try:
            told = self._agent.get("services", *name)
        except QueryError:
            return []
        frontends = told["frontends"] if told else ()
        return [
            ClusterIp(_key(each), each["port_name"])
            for each in frontends
            if each["type"] == FrontendType.CLUSTER_IP
        ]

    def _known(self, what: str, kind: type) -> Any:
        try:
            return (self._agent.get("names") or {}).get(what, kind())
        except QueryError:
            return kind()


def _key(frontend: Mapping[str, Any]) -> FrontendKey:
    address, protocol = parse_address(frontend["address"]), Protocol[frontend["protocol"]]
    return FrontendKey(address, frontend["port"], protocol)


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
    raise ConfigError(f"Service {name} {problem}: say {name}:PORT, one of {', '.join(ports)}")


def _of_protocol(
    name: ServiceName, found: Sequence[ClusterIp], protocol: Protocol | None
) -> list[ClusterIp]:
    """TCP, where nothing else is asked for and there is that."""
    there = sorted({each.key.protocol for each in found})
    wanted = protocol or there[0]
    chosen = [each for each in found if each.key.protocol is wanted]
    if chosen:
        return chosen
    protocols = ", ".join(each.name for each in there)
    raise ConfigError(f"Service {name} has that port for {protocols}, not for {wanted.name}")


def _ask_api_server(name: ServiceName, known: Iterable[str]) -> list[str]:
    """The addresses of a pod that is no endpoint."""
    from ebpflb.source.api import Api, MissingError, Request

    hint = near(str(name), known)
    problem = f"pod {name} is no endpoint of a Service{hint}"
    try:
        api = Api(setting("kubeconfig", None, os.environ), setting("master", None, os.environ))
        path = f"/api/v1/namespaces/{name.namespace}/pods/{name.name}"
        pod: Any = api.get(Request(path, "pods", {}, verb="get"))
    except MissingError as error:
        raise ConfigError(f"no pod {name}{hint}") from error
    except (ConfigError, SourceError) as error:
        raise ConfigError(f"{problem}; say its address (API server: {error})") from error
    addresses = [str(each["ip"]) for each in pod.get("status", {}).get("podIPs", ())]
    if not addresses:
        raise ConfigError(f"pod {name} has no address yet")
    return addresses
