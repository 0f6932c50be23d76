# SPDX-License-Identifier: Apache-2.0
"""What kube-proxy leaves in ipvs mode: virtual services, the device with their addresses, sets.

kube-proxy's virtual services are those on an address of its device, and those on a port in its
NodePort sets. Those of others, such as keepalived, stay. Sets can only be destroyed once no
iptables rule refers to them.
"""

import ipaddress
import json
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from ebpflb.dataplane.kube_proxy.tools import proc_net, program_path, run, run_if_supported
from ebpflb.errors import ProbeError

DEVICE = "kube-ipvs0"

_IP_SET_NAME_LENGTH = 31
_BASE_NAMES = (
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "HEALTH-CHECK-NODE-PORT",
    "IPVS-IPS",
    "LOAD-BALANCER",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-SOURCE-CIDR",
    "LOAD-BALANCER-SOURCE-IP",
    "LOOP-BACK",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-TCP",
    "NODE-PORT-UDP",
)
_SET_NAMES = frozenset(
    f"{family}{name}"[:_IP_SET_NAME_LENGTH]
    for family in ("KUBE-", "KUBE-6-")
    for name in _BASE_NAMES
)
_NODE_PORT = re.compile(
    r"add KUBE-(?:6-)?NODE-PORT-(?:LOCAL-)?(TCP|UDP|SCTP)(?:-HAS?H?)? (?:\S*:)?(\d+)"
)
_VIRTUAL_SERVICE = re.compile(
    r"(TCP|UDP|SCTP) +(?:([0-9A-F]{8})|\[([0-9a-fA-F:.]+)\]):([0-9A-F]{4}) "
)
_OPTIONS = {"TCP": "--tcp-service", "UDP": "--udp-service", "SCTP": "--sctp-service"}


class VirtualService(NamedTuple):
    """A service of ipvs; `protocol` as in /proc/net/ip_vs."""

    protocol: str
    address: str
    port: int

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.protocol} {address}:{self.port}"


class Sets(NamedTuple):
    """kube-proxy's sets, and the NodePorts (protocol, port) in them."""

    names: tuple[str, ...]
    node_ports: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Ipvs:
    """What kube-proxy left; `device` is the name of its device, or empty."""

    services: tuple[VirtualService, ...]
    device: str
    sets: tuple[str, ...]


def find_ipvs() -> tuple[Ipvs, list[str]]:
    """What kube-proxy left, and the names of the missing tools.

    ProbeError if it left something that only a missing tool can remove.
    """
    device = DEVICE if DEVICE in (name for _, name in socket.if_nameindex()) else ""
    addresses = _addresses(_needed("ip", "iproute2", DEVICE)) if device else frozenset()
    present = virtual_services(proc_net("ip_vs"))
    ipset = _needed("ipset", "ipset", DEVICE) if device else program_path("ipset")
    sets = parse_sets(run_if_supported(ipset, "save")) if ipset else Sets((), frozenset())
    services = own_services(present, addresses, sets.node_ports)
    if services:
        _needed("ipvsadm", "ipvsadm", f"the virtual service {services[0]}")
    return Ipvs(services, device, sets.names), [] if ipset else ["ipset"]


def remove_ipvs(what: Ipvs) -> None:
    """Remove it; call this after removing the iptables rules that refer to the sets."""
    for service in what.services:
        program = _needed("ipvsadm", "ipvsadm", str(service))
        place = str(service).partition(" ")[2]
        run(program, "--delete-service", _OPTIONS[service.protocol], place)
    if what.device:
        run(_needed("ip", "iproute2", DEVICE), "link", "delete", "dev", what.device)
    for name in what.sets:
        run(_needed("ipset", "ipset", name), "destroy", name)


def virtual_services(listed: str) -> list[VirtualService]:
    """The services in /proc/net/ip_vs, except those by firewall mark, never kube-proxy's."""
    found = []
    for line in listed.splitlines():
        if match := _VIRTUAL_SERVICE.match(line):
            protocol, v4, v6, port = match.groups()
            address = ipaddress.ip_address(int(v4, 16) if v4 else v6)
            found.append(VirtualService(protocol, str(address), int(port, 16)))
    return found


def own_services(
    present: Collection[VirtualService],
    addresses: Collection[str],
    node_ports: Collection[tuple[str, int]],
) -> tuple[VirtualService, ...]:
    """The virtual services of kube-proxy; `addresses` are those of its device."""
    return tuple(
        service
        for service in present
        if service.address in addresses or (service.protocol, service.port) in node_ports
    )


def parse_sets(saved: str) -> Sets:
    """kube-proxy's sets in the output of `ipset save`."""
    created = [line.split()[1] for line in saved.splitlines() if line.startswith("create ")]
    ports = (_NODE_PORT.fullmatch(line) for line in saved.splitlines())
    return Sets(
        tuple(sorted(set(created) & _SET_NAMES)),
        frozenset((port[1], int(port[2])) for port in ports if port),
    )


def _addresses(ip: str) -> frozenset[str]:
    (device,) = json.loads(run(ip, "-json", "address", "show", "dev", DEVICE))
    return frozenset(each["local"] for each in device.get("addr_info", ()))


def _needed(program: str, package: str, reason: str) -> str:
    found = program_path(program)
    if found is None:
        raise ProbeError(f"{program} is not installed, and there is {reason}: install {package}")
    return found
