# SPDX-License-Identifier: Apache-2.0
"""Nodes of a lab configured as network plugins do it, after their sources. AWS has its own module.

A Linux bridge stands for Open vSwitch, and a veth with both ends on the node for its internal port.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ebpflb.lab import Lab, Member
from tests.e2e.harness.cluster import address_of

VERSIONS = (4, 6)
UPLINK, UPLINK_BRIDGE = "eth0", "br-ex"
LONGEST = {4: 32, 6: 128}
_SWITCH, _GATEWAY, _GATEWAY_PORT = "br-int", "antrea-gw0", "gw0-port"


class Style(NamedTuple):
    """How a pod's veth is wired.

    gateways: the pod's gateway, by IP version. mac: of the host's end, as a static neighbour of the
    pod. proxy_arp: the host's end answers for any IPv4 address. is_on_host: it has the gateway's
    address.
    """

    gateways: Mapping[int, str]
    mac: str = ""
    proxy_arp: bool = False
    is_on_host: bool = False


# network/transparent_endpointclient_linux.go of Azure/azure-container-networking
_AZURE = Style({4: "169.254.1.1", 6: "fe80::1234:5678:9abc"}, "aa:aa:aa:aa:aa:aa", proxy_arp=True)


def lay_out_azure(lab: Lab, pod: Member) -> None:
    """Azure's transparent mode."""
    rewire(lab, pod, f"azv{_number(pod)}", _AZURE)


def lay_out_gke(lab: Lab, pod: Member) -> None:
    """GKE without Dataplane V2: the CNI plugin ptp, with other device names."""
    node = int(pod.node.removeprefix("node"))
    gateways = {each.version: each.pod_gateway(node) for each in lab.layout.ranges}
    rewire(lab, pod, f"gke{_number(pod)}", Style(gateways, is_on_host=True))


def lay_out_switch(lab: Lab, name: str) -> None:
    """Antrea; OVN-Kubernetes and Kube-OVN are similar.

    Pods are ports of a switch, the node reaches them by its gateway port, and the uplink is a port
    of another switch, which has the node's addresses.
    """
    node = lab.node(name)
    run(
        node,
        4,
        [
            f"link add {_SWITCH} type bridge mcast_snooping 0",
            f"link set {_SWITCH} up",
            f"link add {_GATEWAY} type veth peer name {_GATEWAY_PORT}",
            f"link set {_GATEWAY_PORT} master {_SWITCH} up",
            f"link set {_GATEWAY} up",
        ],
    )
    for pod in lab.pods_on(name):
        before, device = f"veth{pod.name.removeprefix('pod')}", f"pod{_number(pod)}"
        run(node, 4, [f"link set {before} down", f"link set {before} name {device}"])
        run(node, 4, [f"link set {device} master {_SWITCH}", f"link set {device} up"])
    for version in VERSIONS:
        ranges = lab.layout.ranges_of(version)
        number = int(name.removeprefix("node"))
        bits = ranges.pods(number).prefixlen
        place = f"{ranges.pod_gateway(number)}/{bits} dev {_GATEWAY}{nodad(version)}"
        own = (f"addr flush dev pod{_number(pod)} scope global" for pod in lab.pods_on(name))
        run(node, version, [*own, f"addr add {place}"])
        run(node, version, _moved_uplink(lab, node, version))


def _moved_uplink(lab: Lab, node: Member, version: int) -> Iterator[str]:
    """A bridge gets the addresses and routes of the node, and its network card as a port."""
    routes = node.exec(["ip", f"-{version}", "route"]).stdout.splitlines()
    if version == VERSIONS[0]:
        yield f"link add {UPLINK_BRIDGE} type bridge mcast_snooping 0"
        yield f"link set {UPLINK_BRIDGE} up"
    bits = lab.layout.ranges_of(version).underlay().prefixlen
    address = f"{address_of(node, version)}/{bits}"
    yield f"addr del {address} dev {UPLINK}"
    yield f"addr add {address} dev {UPLINK_BRIDGE}{nodad(version)}"
    yield f"link set {UPLINK} master {UPLINK_BRIDGE}"
    for route in routes:
        if f" dev {UPLINK}" in route and " via " in route:
            yield f"route replace {route.split(' dev ')[0]} dev {UPLINK_BRIDGE}"


def rewire(lab: Lab, pod: Member, device: str, style: Style) -> None:
    """The host's end of the pod's veth gets this name, and a route to the pod."""
    node = lab.node(pod.node)
    mac = f" address {style.mac}" if style.mac else ""
    own = f"veth{pod.name.removeprefix('pod')}"
    run(node, 4, [f"link set {own} down", f"link set {own} name {device}{mac}"])
    run(node, 4, [f"addr flush dev {device}", f"link set {device} up"])
    if style.proxy_arp:
        with node.entered():
            Path(f"/proc/sys/net/ipv4/conf/{device}/proxy_arp").write_text("1")
    for version in VERSIONS:
        own = f"{address_of(pod, version)}/{LONGEST[version]}"
        gateway = style.gateways[version]
        if style.is_on_host:
            place = f"{gateway}/{LONGEST[version]} dev {device}{nodad(version)}"
            run(node, version, [f"addr add {place}"])
        run(node, version, [f"route replace {own} dev {device}"])
        before = lab.layout.ranges_of(version).pod_gateway(int(pod.node.removeprefix("node")))
        run(pod, version, [f"route del default dev {UPLINK}", f"route del {before} dev {UPLINK}"])
        run(pod, version, _way_out(style, gateway))


def _way_out(style: Style, gateway: str) -> Iterator[str]:
    yield f"route replace {gateway} dev {UPLINK}"
    yield f"route replace default via {gateway} dev {UPLINK}"
    if style.mac:
        yield f"neigh replace {gateway} lladdr {style.mac} dev {UPLINK} nud permanent"


def run(member: Member, version: int, lines: Iterable[str]) -> None:
    """Lines for ip(8)."""
    member.exec(["ip", f"-{version}", "-batch", "-"], input="\n".join(lines) + "\n")


def nodad(version: int) -> str:
    """The suffix for adding an address; IPv6 needs no duplicate address detection here."""
    return " nodad" if version == 6 else ""


def _number(pod: Member) -> str:
    return pod.name.removeprefix("pod-").replace("-", "")
