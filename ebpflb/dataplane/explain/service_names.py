# SPDX-License-Identifier: Apache-2.0
"""The Services that the maps have, and the ClusterIPs of one, without an agent."""

from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.explain.lookups import Lookups, frontend_key
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import FrontendType
from ebpflb.dataplane.layout.records import frontend_key_of, unpack_name
from ebpflb.model.address import Protocol, family_of
from ebpflb.model.plan import FrontendKey
from ebpflb.model.service import ServiceName


class ClusterIp(NamedTuple):
    """One ClusterIP frontend of a Service."""

    key: FrontendKey
    port_name: str


def service_names(maps: MapSet) -> set[ServiceName]:
    """Every Service with a frontend in force or about to be. MapError."""
    values = (value for _, value in maps["lb_names"].items())
    return {ServiceName(*unpack_name(value, Protocol.TCP)[:2]) for value in values}


def cluster_ips(lookups: Lookups, name: ServiceName) -> list[ClusterIp]:
    """The ClusterIPs of a Service, IPv4 first. MapError."""
    found = []
    own = {
        int.from_bytes(key, byteorder)
        for key, value in lookups.maps["lb_names"].items()
        if unpack_name(value, Protocol.TCP)[:2] == tuple(name)
    }
    for key, _ in lookups.maps["lb_frontends"].items() if own else ():
        desc = lookups.frontend_lookup(frontend_key_of(key))
        if desc and desc.service in own and desc.type == FrontendType.LB_CLUSTER_IP:
            port_name = lookups.name_of(desc)
            found.append(ClusterIp(frontend_key(desc), port_name.port if port_name else ""))
    return sorted(found, key=lambda each: (family_of(each.key.address), each.key))
