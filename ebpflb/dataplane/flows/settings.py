# SPDX-License-Identifier: Apache-2.0
"""What the programs read besides Services, and what may change without a compile.

lb_settings: flags, source ports, timeouts, flow records. lb_service_nets: the networks in which
addresses that belong to no Service are refused.
"""

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import NamedTuple

from ebpflb.config.settings import Settings
from ebpflb.dataplane.flows.flow_filter import filter_floor_of
from ebpflb.dataplane.flows.source_ports import are_shared, own_ports
from ebpflb.dataplane.flows.timeouts import TCP_CLOSED_SECONDS, TCP_OPENING_SECONDS, Timeouts
from ebpflb.dataplane.flows.udp_tables import flags_of_udp
from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.enums import FlowEvent, SettingFlag
from ebpflb.dataplane.layout.structs import (
    LbAddr,
    LbNet4,
    LbNet6,
    LbPortRange,
    LbServiceNets,
    LbSettings,
)
from ebpflb.model.address import Address, Family

_KEY = bytes(4)
_MOST_NETS = len(LbServiceNets().ipv4)


class FlowRecords(NamedTuple):
    """Which events make records, for one in how many flows (0: none), and the rate limit.

    `sample` is for START and END; `rate` is per second and CPU, 0 for no limit.
    """

    events: frozenset[FlowEvent] = frozenset(
        {FlowEvent.LB_FLOW_END, FlowEvent.LB_FLOW_REFUSED, FlowEvent.LB_FLOW_DROPPED}
    )
    sample: int = 1
    rate: int = 1000


def flow_records(options: Settings) -> FlowRecords:
    events = frozenset(FlowEvent[f"LB_FLOW_{event.upper()}"] for event in options.flow_events)
    return FlowRecords(events, options.flow_sample, options.flow_rate)


def write_settings(
    target: BpfMap,
    *,
    flags: SettingFlag,
    primary: Mapping[Family, Address],
    timeouts: Timeouts = Timeouts(),  # noqa: B008  cannot change
    records: FlowRecords = FlowRecords(),  # noqa: B008  cannot change
    dsr_port: int = 0,
) -> None:
    """Write lb_settings if it differs.

    `primary`: the node's addresses, used as sources of hairpins and tunnels. `dsr_port`: 0 if the
    node does not take part in DSR.
    """
    shared = SettingFlag.LB_SETTING_SHARED_PORTS if are_shared() else SettingFlag(0)
    wanted = LbSettings(
        flags=flags | flags_of_udp(target) | shared,
        snat_ports=(LbPortRange * 2)(*(LbPortRange(*ports) for ports in own_ports())),
        tcp_opening_timeout=TCP_OPENING_SECONDS,
        tcp_established_timeout=timeouts.tcp_established,
        tcp_closed_timeout=TCP_CLOSED_SECONDS,
        tcp_close_wait_timeout=timeouts.tcp_close_wait,
        udp_timeout=timeouts.udp,
        udp_stream_timeout=timeouts.udp_stream,
        flow_events=sum(1 << event for event in records.events),
        flow_sample=records.sample,
        flow_rate=records.rate,
        node4=LbAddr.of(primary.get(Family.IPV4)),
        node6=LbAddr.of(primary.get(Family.IPV6)),
        dsr_port=dsr_port,
        filter_floor=filter_floor_of(target),
    )
    if target.lookup(_KEY) != bytes(wanted):
        target.update(_KEY, bytes(wanted))


def write_service_nets(target: BpfMap, ranges: Iterable[str]) -> list[str]:
    """Write these CIDRs if they differ. Returns those for which there is no room.

    Ignores a range with all addresses. MapError.
    """
    networks = [ip_network(text) for text in ranges]
    ipv4 = list(collapse_addresses(each for each in networks if isinstance(each, IPv4Network)))
    ipv6 = list(collapse_addresses(each for each in networks if isinstance(each, IPv6Network)))
    wanted = LbServiceNets()
    for place4, network4 in enumerate(ipv4[:_MOST_NETS]):
        wanted.ipv4[place4] = LbNet4(int(network4.network_address), int(network4.netmask))
    for place6, network6 in enumerate(ipv6[:_MOST_NETS]):
        wanted.ipv6[place6] = LbNet6(
            LbAddr.from_buffer_copy(network6.network_address.packed),
            LbAddr.from_buffer_copy(network6.netmask.packed),
        )
    if target.lookup(_KEY) != bytes(wanted):
        target.update(_KEY, bytes(wanted))
    return [str(each) for each in (*ipv4[_MOST_NETS:], *ipv6[_MOST_NETS:])]
