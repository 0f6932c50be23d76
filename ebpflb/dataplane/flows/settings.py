# SPDX-License-Identifier: Apache-2.0
"""What the programs read besides Services, and what may change without a compile.

lb_settings: flags, source ports, timeouts, flow records. lb_service_nets: the networks in which
addresses that belong to no Service are refused.
"""

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network

from ebpflb.config.settings import Settings
from ebpflb.dataplane.flows.flow_filter import filter_floor_of
from ebpflb.dataplane.flows.source_ports import are_shared, own_ports
from ebpflb.dataplane.flows.timeouts import TCP_CLOSED_SECONDS, TCP_OPENING_SECONDS, timeouts
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
from ebpflb.words.connections import END, START

_KEY = bytes(4)
# Those whose records have measured times.
_LATENCY_EVENTS = (START, END)
_MOST_NETS = len(LbServiceNets().ipv4)


def write_settings(
    target: BpfMap,
    options: Settings,
    *,
    flags: SettingFlag,
    primary: Mapping[Family, Address],
    dsr_port: int = 0,
) -> None:
    """Write lb_settings if it differs.

    `primary`: the node's addresses, used as sources of hairpins and tunnels. `dsr_port`: 0 if the
    node does not take part in DSR.
    """
    node_ports, limits = options.service_node_port_range, timeouts(options)
    recorded = {*options.flow_events, *(_LATENCY_EVENTS if options.metrics_latency else ())}
    events = (FlowEvent[f"LB_FLOW_{event.upper()}"] for event in recorded)
    shared = SettingFlag.LB_SETTING_SHARED_PORTS if are_shared(node_ports) else SettingFlag(0)
    wanted = LbSettings(
        flags=flags | shared,
        snat_ports=(LbPortRange * 2)(*(LbPortRange(*each) for each in own_ports(node_ports))),
        tcp_opening_timeout=TCP_OPENING_SECONDS,
        tcp_established_timeout=limits.tcp_established,
        tcp_closed_timeout=TCP_CLOSED_SECONDS,
        tcp_close_wait_timeout=limits.tcp_close_wait,
        udp_timeout=limits.udp,
        udp_stream_timeout=limits.udp_stream,
        flow_events=sum(1 << event for event in events),
        flow_sample=options.flow_sample,
        flow_rate=options.flow_rate,
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
