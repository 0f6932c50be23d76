# SPDX-License-Identifier: Apache-2.0
"""The network as a generation serves it: settings and tunnels in its maps, forwarding, XDP."""

import logging
from collections.abc import Mapping, Sequence, Set

from ebpflb.agent.dataplane.tunnels import NodeTunnels
from ebpflb.agent.status import log_forwarding
from ebpflb.config.settings import Settings
from ebpflb.dataplane.attach.devices import NetworkState
from ebpflb.dataplane.attach.forwarding import Forwarding, forwarding
from ebpflb.dataplane.attach.hooks import Hooks
from ebpflb.dataplane.attach.node_addresses import (
    LOCALHOST_4,
    LOCALHOST_6,
    is_named,
    node_port_filter,
)
from ebpflb.dataplane.attach.xdp import XdpSettings, XdpWay
from ebpflb.dataplane.flows.lost_sources import forget_masqueraded
from ebpflb.dataplane.flows.settings import write_settings
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import SettingFlag, word
from ebpflb.log import fields
from ebpflb.model.address import Address, format_address
from ebpflb.model.agent_report import DeviceReport, NetworkReport, WayReport, XdpReport

_log = logging.getLogger("ebpflb.agent")


class ServedNetwork:
    """`state`: the network as last served. For the loop, except `report()`."""

    def __init__(
        self, maps: MapSet, hooks: Hooks, settings: Settings, tunnels: NodeTunnels
    ) -> None:
        self.state = NetworkState({}, {}, {})
        # Where new flows go while some hooks do not use these tables yet.
        self.way_of_flows = SettingFlag(0)
        # Whether unknown connections are reset; not before all flows are in these tables.
        self.resets = SettingFlag(0)
        self._maps = maps
        self._hooks = hooks
        self._settings = settings
        self._tunnels = tunnels
        self._forwarding: Forwarding | None = None
        self._xdp_told: Mapping[int, XdpWay] = {}

    def prepare(self, network: NetworkState) -> XdpSettings:
        """Write what the hooks need before they change. MapError."""
        chosen = forwarding(self._settings.forwarding, network.policy_engine)
        if chosen != self._forwarding:
            self._forwarding = chosen
            log_forwarding(chosen)
        # The settings say whether there are any whose sockets must be left alone.
        self._hooks.mark_known_pods(network)
        self.write_tunnels(network)
        is_stack = chosen.way == "stack"
        return XdpSettings(self._settings.xdp, self._settings.xdp_devices, is_stack)

    def finish(self, network: NetworkState) -> None:
        """Write what follows from the hooks, which have changed. MapError."""
        self._tell_xdp(network)
        # The hooks may have found pods whose sockets must be left alone.
        self.write_settings(network)
        self._forget_lost(self.state.reachable() - network.reachable())
        self.state = network

    def write_tunnels(self, network: NetworkState) -> None:
        """Also writes the settings, which contain the tunnels' source addresses. MapError."""
        self.write_settings(network)
        self._tunnels.write(self._maps, network.node_addresses)

    def write_settings(self, network: NetworkState) -> None:
        """MapError."""
        write_settings(
            self._maps["lb_settings"],
            self._settings,
            flags=_flags_of(self._settings, network, tc_only_pods=self._hooks.has_tc_only_pods)
            | self.way_of_flows
            | self.resets,
            primary={**network.primary, **self._tunnels.sources(network.node_addresses)},
            dsr_port=self._tunnels.port,
        )

    def end_way_of_flows(self) -> SettingFlag:
        """Call once all hooks use these tables; returns where flows went until now. MapError."""
        ended, self.way_of_flows = self.way_of_flows, SettingFlag(0)
        if ended:
            self.write_settings(self.state)
        return ended

    def report(self, unknown_connections: WayReport) -> NetworkReport:
        """For /status. For any thread."""
        devices = self.state.devices
        return NetworkReport(
            forwarding=WayReport(*self._forwarding) if self._forwarding else None,
            unknown_connections=unknown_connections,
            devices=[
                DeviceReport(each.name, word(each.kind), each.why) for each in devices.values()
            ],
            xdp=[
                XdpReport(devices[ifindex].name, way.mode, way.why)
                for ifindex, way in self._hooks.xdp.items()
                if self._settings.xdp != "off" and ifindex in devices
            ],
            tunnels=self._tunnels.report(),
            left_out=dict(self.state.left_out),
        )

    def _tell_xdp(self, network: NetworkState) -> None:
        """Log once per device how XDP is attached, unless XDP is off."""
        if self._settings.xdp == "off":
            return
        for ifindex, way in self._hooks.xdp.items():
            if self._xdp_told.get(ifindex) != way:
                name = network.devices[ifindex].name
                _log.info("XDP: %s", way.mode or "none", extra=fields(device=name, why=way.why))
        self._xdp_told = self._hooks.xdp

    def _forget_lost(self, addresses: Set[Address]) -> None:
        if addresses and (count := forget_masqueraded(self._maps, addresses)):
            lost = [*map(format_address, addresses)]
            text = "removed UDP flows masqueraded with addresses that are gone or cut off"
            _log.info(text, extra=fields(count=count, addresses=lost))


def _flags_of(settings: Settings, network: NetworkState, *, tc_only_pods: bool) -> SettingFlag:
    """The flags of lb_settings that follow from the settings and from the network."""
    flags = SettingFlag(0)
    if tc_only_pods:
        flags |= SettingFlag.LB_SETTING_TC_ONLY_PODS
    if is_beside(settings):
        flags |= SettingFlag.LB_SETTING_BESIDE
    if settings.socket_lb == "host":
        flags |= SettingFlag.LB_SETTING_SOCKET_HOST
    if settings.localhost_nodeports:
        flags |= _localhost(settings.nodeport_addresses, network)
    if forwarding(settings.forwarding, network.policy_engine).way == "stack":
        flags |= SettingFlag.LB_SETTING_VIA_STACK
    return flags


def _localhost(wanted: Sequence[str], network: NetworkState) -> SettingFlag:
    """As kube-proxy, which serves 127.0.0.1 by default (iptables mode), and ::1 only if named."""
    flags = SettingFlag(0)
    if node_port_filter(wanted, network.primary)(LOCALHOST_4):
        flags |= SettingFlag.LB_SETTING_LOCALHOST
    if is_named(wanted, LOCALHOST_6):
        flags |= SettingFlag.LB_SETTING_LOCALHOST6
    return flags


def is_beside(settings: Settings) -> bool:
    """Whether another proxy serves the Services that are not selected."""
    given = settings.service_selector, settings.namespace_selector, settings.service_proxy_name
    return any(given)
