# SPDX-License-Identifier: Apache-2.0
"""The /status page: what an agent reports of itself, and commands read. Decoded it may be another
version's: what that does not report has its default.
"""

from msgspec import Struct, field


class WayReport(Struct):
    """way: one of a few words. why: for users."""

    way: str
    why: str


class DeviceReport(Struct):
    """kind: in words. why: it is of that kind."""

    name: str
    kind: str
    why: str


class XdpReport(Struct):
    """mode: how the program is attached; empty if it is not, and why."""

    name: str
    mode: str
    why: str


class TunnelsReport(Struct):
    """services: which have DSR. peers: the addresses that tunnels may come from.

    pods: those reached through tunnels. without: the families that have no DSR, and why. keys: how
    many are accepted, 0 if none is needed. key_trouble: what is wrong with their file, or "".
    """

    services: str
    port: int
    peers: int
    pods: int
    without: dict[str, str]
    keys: int
    key_trouble: str


class UnreachableNode(Struct):
    """Of which tunnels carry nothing, in one family."""

    node: str
    family: str
    why: str


class DsrPeers(Struct):
    """How many were asked, once for each family, and how many of them have answered."""

    asked: int
    reachable: int
    unreachable: list[UnreachableNode]


class NetworkReport(Struct, kw_only=True):
    """forwarding, unknown_connections: None while the agent starts. tunnels: None without DSR.

    xdp: for each uplink; empty if it is off. left_out: devices that are not served, and why.
    """

    forwarding: WayReport | None = None
    unknown_connections: WayReport | None = None
    devices: list[DeviceReport] = field(default_factory=list)
    xdp: list[XdpReport] = field(default_factory=list)
    tunnels: TunnelsReport | None = None
    left_out: dict[str, str] = field(default_factory=dict)


class AgentReport(NetworkReport, kw_only=True):
    """Times are in RFC 3339. selectors: of the Services to serve, by option.

    Errors are lines, by what they are about. rights_kept: what could not be given up, and why.
    """

    version: str
    node: str
    pid: int
    started: str
    healthy: bool
    in_sync: bool
    last_sync: str | None
    services: int
    frontends: int
    selectors: dict[str, str] = field(default_factory=dict)
    services_left_out: int = 0
    ejected_endpoints: int = 0
    dsr_peers: DsrPeers | None = None
    kernel_lacks: dict[str, str] = field(default_factory=dict)
    rights_kept: dict[str, str] = field(default_factory=dict)
    source_errors: dict[str, str] = field(default_factory=dict)
    unread_seconds: int = 0
    stale_since: str | None = None
    attach_errors: dict[str, str] = field(default_factory=dict)
    health_check_errors: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)
    misconfigured: list[str] = field(default_factory=list)
    addresses_refused: list[str] = field(default_factory=list)
    without_table: list[str] = field(default_factory=list)
