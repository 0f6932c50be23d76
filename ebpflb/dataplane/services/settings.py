# SPDX-License-Identifier: Apache-2.0
"""lb_settings: what the programs are told that may change without a compile."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.enums import FlowEvent, SettingFlag
from ebpflb.dataplane.layout.structs import Addr, PortRange, Settings
from ebpflb.model.address import Address, Family

Ports = tuple[int, int]

NODE_PORTS: Ports = (30000, 32767)

# RFC 5382 asks for no less than 4 minutes where a connection opens or has closed.
TCP_OPENING_SECONDS = 240
TCP_CLOSED_SECONDS = 240

_FIRST, _LAST = 1024, 65535
_FEWEST = 1000
_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_KEY = bytes(4)


class Timeouts(NamedTuple):
    """After how many seconds without a packet a flow is forgotten.

    Of TCP as kube-proxy sets them; of UDP more than the 2 minutes that RFC 4787 asks for.
    tcp_close_wait: one side has closed; udp: without an answer; udp_stream: with answers.
    """

    tcp_established: int = 86400
    tcp_close_wait: int = 3600
    udp: int = 180
    udp_stream: int = 180


class FlowRecords(NamedTuple):
    """Which events make records, of one in how many flows (0: none), and how many at most.

    `sample` is for START and END; `rate` is per second and CPU, 0 for no limit.
    """

    events: frozenset[FlowEvent] = frozenset(
        {FlowEvent.LB_FLOW_END, FlowEvent.LB_FLOW_REFUSED, FlowEvent.LB_FLOW_DROPPED}
    )
    sample: int = 1
    rate: int = 1000


def write_settings(
    target: BpfMap,
    *,
    flags: SettingFlag,
    primary: Mapping[Family, Address],
    timeouts: Timeouts = Timeouts(),  # noqa: B008  cannot change
    records: FlowRecords = FlowRecords(),  # noqa: B008  cannot change
) -> None:
    """Write lb_settings when it differs. `primary`: the node's addresses, sources of hairpins."""
    wanted = Settings(
        flags=flags,
        snat_ports=(PortRange * 2)(*(PortRange(*ports) for ports in own_ports())),
        tcp_opening_timeout=TCP_OPENING_SECONDS,
        tcp_established_timeout=timeouts.tcp_established,
        tcp_closed_timeout=TCP_CLOSED_SECONDS,
        tcp_close_wait_timeout=timeouts.tcp_close_wait,
        udp_timeout=timeouts.udp,
        udp_stream_timeout=timeouts.udp_stream,
        flow_events=sum(1 << event for event in records.events),
        flow_sample=records.sample,
        flow_rate=records.rate,
        node4=Addr.of(primary.get(Family.IPV4)),
        node6=Addr.of(primary.get(Family.IPV6)),
    )
    if target.lookup(_KEY) != bytes(wanted):
        target.update(_KEY, bytes(wanted))


def own_ports() -> tuple[Ports, Ports]:
    """The source ports that the programs masquerade with.

    Where sockets may take nearly all ports by themselves, both choose from the same: what another
    flow has is not given out (reserve.py).
    """
    found = snat_ports(local_ports(), NODE_PORTS)
    if sum(last - first + 1 for first, last in found) < _FEWEST:
        found = snat_ports(NODE_PORTS)
    one, two = found
    return one, two


def local_ports() -> Ports:
    """The ports that sockets of this network namespace take by themselves."""
    first, last = _LOCAL_PORTS.read_text().split()
    return int(first), int(last)


def snat_ports(*taken: Ports) -> list[Ports]:
    """The two largest ranges of unprivileged ports outside `taken`, in order.

    By default 1024-29999 and 61000-65535. Where only one range is left it is halved; none may be.
    """
    free = sorted(_gaps(sorted(taken)), key=lambda ports: ports[0] - ports[1])[:2]
    if len(free) == 1:
        first, last = free[0]
        middle = (first + last) // 2
        free = [(first, middle), (middle + 1, last)]
    return sorted(free)


def _gaps(taken: list[Ports]) -> list[Ports]:
    gaps, start = [], _FIRST
    for first, last in taken:
        if first > start:
            gaps.append((start, first - 1))
        start = max(start, last + 1)
    return [*gaps, (start, _LAST)] if start <= _LAST else gaps
