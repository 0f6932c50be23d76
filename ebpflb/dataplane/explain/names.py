# SPDX-License-Identifier: Apache-2.0
"""The frontend that DST of `ebpflb explain` stands for, if it names a Service."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ebpflb.config.values import near
from ebpflb.dataplane.explain.asking import Asking
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.records import frontend_key_of
from ebpflb.dataplane.view.snapshot import Snapshot, read_snapshot
from ebpflb.errors import ConfigError
from ebpflb.model.address import Family, Protocol, family_of
from ebpflb.model.changes import Changes
from ebpflb.model.plan import FrontendKey, FrontendType
from ebpflb.model.service import ServiceName


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


def frontend_named(
    name: ServiceName,
    port: str,
    protocol: Protocol | None,
    families: Iterable[Family],
    among: Sequence[ClusterIp],
) -> FrontendKey:
    """The one of a Service's frontends in the first of these families that has one. ConfigError."""
    found = _of_protocol(name, _of_port(name, among, port), protocol)
    order = [*families, *Family]
    return min(found, key=lambda each: order.index(family_of(each.key.address))).key


def find_cluster_ips(name: ServiceName, maps: MapSet, asking: Asking) -> Sequence[ClusterIp]:
    """Of a Service, as planned, else as in force. ConfigError if there are none."""
    planned = asking.of(lambda changes: planned_cluster_ips(changes, name))
    if planned:
        return planned
    snapshot = read_snapshot(maps)
    if found := cluster_ips(snapshot, name):
        return found
    in_force = {f"{namespace}/{service}" for namespace, service, _ in snapshot.ports}
    services = in_force.union(map(str, asking.of(lambda changes: changes.names()) or ()))
    if str(name) in services:
        raise ConfigError(f"Service {name} has no ClusterIP (headless, or not served here)")
    raise ConfigError(f"no Service {name}{near(str(name), services)}")


def planned_cluster_ips(changes: Changes, name: ServiceName) -> list[ClusterIp]:
    """Also of a Service that another proxy serves."""
    service = changes.served(name)
    if service and changes.why_left_out(service):
        return [
            ClusterIp(FrontendKey(each.cluster_ip, each.port, each.name.protocol), each.name.port)
            for each in service.ports
        ]
    return [
        ClusterIp(each.key, each.service.port)
        for each in changes.plan(name)
        if each.type is FrontendType.CLUSTER_IP
    ]


def _of_port(name: ServiceName, found: Sequence[ClusterIp], port: str) -> list[ClusterIp]:
    number = port.lstrip("0")
    if port:
        chosen = [each for each in found if number == str(each.key.port) or port == each.port_name]
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
