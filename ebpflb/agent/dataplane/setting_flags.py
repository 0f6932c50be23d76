# SPDX-License-Identifier: Apache-2.0
"""The flags of lb_settings that follow from the settings and from the network."""

from collections.abc import Sequence

from ebpflb.config.settings import Settings
from ebpflb.dataplane.attach.devices import NetworkState
from ebpflb.dataplane.attach.forwarding import forwarding
from ebpflb.dataplane.attach.node_addresses import (
    LOCALHOST_4,
    LOCALHOST_6,
    is_named,
    node_port_filter,
)
from ebpflb.dataplane.attach.other_proxy import ProxyRules
from ebpflb.dataplane.flows.unknown_connections import UnknownConnections
from ebpflb.dataplane.layout.enums import SettingFlag


def flags_of(settings: Settings, network: NetworkState, *, tc_only_pods: bool) -> SettingFlag:
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


def unknown_connections(settings: Settings) -> UnknownConnections:
    return UnknownConnections(is_beside=is_beside(settings), rules=ProxyRules().sign)
