# SPDX-License-Identifier: Apache-2.0
"""lb_settings: what the programs are told that may change without a compile."""

from collections.abc import Mapping
from pathlib import Path

from ebpflb.dataplane.maps import BpfMap
from ebpflb.dataplane.structs import Addr, PortRange, SettingFlag, Settings
from ebpflb.model.address import Address, Family

Ports = tuple[int, int]

NODE_PORTS: Ports = (30000, 32767)

# As nf_conntrack's defaults: SYN_SENT 120 s, ESTABLISHED 24 h (kube-proxy), TIME_WAIT 120 s, and
# UDP_STREAM 180 s rounded up to what DNS and QUIC clients keep.
TCP_OPENING_SECONDS = 120
TCP_ESTABLISHED_SECONDS = 86400
TCP_CLOSED_SECONDS = 120
UDP_SECONDS = 180

_FIRST, _LAST = 1024, 65535
_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_KEY = bytes(4)


def write_settings(
    target: BpfMap, *, socket_host_only: bool, primary: Mapping[Family, Address]
) -> None:
    """Write lb_settings when it differs. `primary`: the node's addresses, sources of hairpins."""
    wanted = Settings(
        flags=SettingFlag.LB_SETTING_SOCKET_HOST if socket_host_only else 0,
        snat_ports=(PortRange * 2)(*(PortRange(*r) for r in snat_ports(local_ports(), NODE_PORTS))),
        tcp_opening_timeout=TCP_OPENING_SECONDS,
        tcp_established_timeout=TCP_ESTABLISHED_SECONDS,
        tcp_closed_timeout=TCP_CLOSED_SECONDS,
        udp_timeout=UDP_SECONDS,
        node4=_addr(primary.get(Family.IPV4)),
        node6=_addr(primary.get(Family.IPV6)),
    )
    if target.lookup(_KEY) != bytes(wanted):
        target.update(_KEY, bytes(wanted))


def local_ports() -> Ports:
    """The ports that sockets of this network namespace take by themselves."""
    first, last = _LOCAL_PORTS.read_text().split()
    return int(first), int(last)


def snat_ports(*taken: Ports) -> tuple[Ports, Ports]:
    """The two largest ranges of unprivileged ports outside `taken`, in order.

    By default 1024-29999 and 61000-65535. Where only one range is left it is halved.
    """
    free = sorted(_gaps(sorted(taken)), key=lambda ports: ports[0] - ports[1])[:2]
    if len(free) == 1:
        first, last = free[0]
        middle = (first + last) // 2
        free = [(first, middle), (middle + 1, last)]
    one, two = sorted(free)
    return one, two


def _gaps(taken: list[Ports]) -> list[Ports]:
    gaps, start = [], _FIRST
    for first, last in taken:
        if first > start:
            gaps.append((start, first - 1))
        start = max(start, last + 1)
    return [*gaps, (start, _LAST)] if start <= _LAST else gaps


def _addr(address: Address | None) -> Addr:
    return Addr.from_buffer_copy(address) if address else Addr()
