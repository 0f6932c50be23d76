# SPDX-License-Identifier: Apache-2.0
"""Sysctls of this network namespace that Services depend on, or that kube-proxy has left."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ebpflb.dataplane.attach.devices import Device, NetworkState
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.dataplane.services.settings import NODE_PORTS, Ports
from ebpflb.model.address import Family

CHECK = "sysctls"

_NET = Path("/proc/sys/net")
_STRICT = 1
_NOTHING = "is 0: nothing gets from outside to pods, or from pods to outside"


def check_sysctls(network: NetworkState, snat: Iterable[Ports], net: Path = _NET) -> list[Finding]:
    """`snat`: the source ports that our programs masquerade with. OSError."""
    devices = sorted(network.devices.values(), key=lambda device: device.name)
    found = [
        *_forwarding(network, devices, net),
        *_reverse_path(devices, net),
        *_route_localnet(net),
        *_ports(list(snat), net),
    ]
    return all_well(CHECK, "the node forwards, and ports do not overlap", found)


def _forwarding(network: NetworkState, devices: list[Device], net: Path) -> Iterator[Finding]:
    """IPv4 looks at the device by which a packet comes in, IPv6 at `all` alone."""
    if Family.IPV6 in network.primary:
        name = "net.ipv6.conf.all.forwarding"
        if _read(net, name) == "0":
            yield Finding(Severity.ERROR, CHECK, name, _NOTHING, f"sysctl -w {name}=1")
    if Family.IPV4 in network.primary:
        place = "net.ipv4.conf"
        names = [device.name for device in devices]
        off = [name for name in names if _read_device(net, place, name, "forwarding") == "0"]
        if off and off == names:
            name = "net.ipv4.ip_forward"
            yield Finding(Severity.ERROR, CHECK, name, _NOTHING, f"sysctl -w {name}=1")
        elif off:
            what = "is 0: the node forwards nothing that comes in there"
            where = f"{place}.*.forwarding of {examples(off)}"
            advice = f"sysctl -w {place}.{off[0]}.forwarding=1"
            yield Finding(Severity.WARNING, CHECK, where, what, advice)


def _reverse_path(devices: Iterable[Device], net: Path) -> Iterator[Finding]:
    """The stricter of a device's and that of all counts. With one way out strict does no harm."""
    hosts = [each for each in devices if each.kind == DeviceKind.LB_DEVICE_HOST and each.up]
    of_all = int(_read(net, "net.ipv4.conf.all.rp_filter"))
    strict = [
        each.name
        for each in hosts
        if max(of_all, int(_read_device(net, "net.ipv4.conf", each.name, "rp_filter") or 0))
        == _STRICT
    ]
    if strict and len(hosts) > 1:
        what = "is 1 (strict): what comes in by one device and would leave by another is dropped"
        where = f"net.ipv4.conf.*.rp_filter of {examples(strict)}"
        yield Finding(Severity.WARNING, CHECK, where, what, "set it to 2 (loose) there")


def _route_localnet(net: Path) -> Iterator[Finding]:
    name = "net.ipv4.conf.all.route_localnet"
    if _read(net, name) != "0":
        what = "is 1, as kube-proxy sets it: neighbours may reach what listens on 127.0.0.1"
        yield Finding(
            Severity.NOTE, CHECK, name, what, f"nothing here needs it: sysctl -w {name}=0"
        )


def _ports(snat: list[Ports], net: Path) -> Iterator[Finding]:
    name = "net.ipv4.ip_local_port_range"
    first, last = map(int, _read(net, name).split())
    local = (first, last)
    shown = f"is {first}-{last}"
    reserved = _read(net, "net.ipv4.ip_local_reserved_ports")
    if _overlap(local, NODE_PORTS) and not _reserves(reserved, NODE_PORTS):
        what = f"{shown}: a socket may take a port that is a NodePort, {_text(NODE_PORTS)}"
        advice = f"sysctl -w net.ipv4.ip_local_reserved_ports={_text(NODE_PORTS)}"
        yield Finding(Severity.WARNING, CHECK, name, what, advice)
    if shared := [ports for ports in snat if _overlap(local, ports)]:
        what = f"{shown}: sockets and masquerading share {examples(map(_text, shared))}"
        advice = "masquerading avoids what is taken; a smaller range leaves it ports of its own"
        yield Finding(Severity.NOTE, CHECK, name, what, advice)


def _reserves(reserved: str, ports: Ports) -> bool:
    """Whether one of the reserved ranges ("1-2,7") covers all of `ports`."""
    for each in filter(None, reserved.split(",")):
        first, _, last = each.partition("-")
        if int(first) <= ports[0] and ports[1] <= int(last or first):
            return True
    return False


def _overlap(one: Ports, other: Ports) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _text(ports: Ports) -> str:
    return f"{ports[0]}-{ports[1]}"


def _read(net: Path, name: str) -> str:
    return (net / name.removeprefix("net.").replace(".", "/")).read_text().strip()


def _read_device(net: Path, place: str, device: str, name: str) -> str:
    """Of a device, whose name may have dots; empty when it is gone."""
    try:
        path = net / place.removeprefix("net.").replace(".", "/") / device / name
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
