# SPDX-License-Identifier: Apache-2.0
"""The network of a lab as sysctls and ip(8) commands, each run inside its member's namespace.

    pod eth0 --- veth-1-1 [node1] eth0 --- node1 [underlay: br0] client --- eth0 client

How pods of two nodes reach each other:
  ptp      a /32 and a /128 per pod, routed over a veth pair of its own, as the CNI plugin ptp does
  bridge   a bridge per node; the other nodes' ranges are routed over the underlay
  vxlan    a bridge per node and a tunnel device; the other nodes' ranges are routed into the
           tunnel, with neighbours and forwarding entries set by hand (nolearning), as flannel does
Nothing here is for Services: no netfilter, no masquerading.
"""

from collections.abc import Iterator, Mapping

from ebpflb.lab.layout import Cni, LabConfig, Layout, Seat, SeatKind

BRIDGE = "cni0"
TUNNEL = "vxlan1"
UPLINK = "eth0"

_UNDERLAY_MTU = 1500
# The outer Ethernet, IP, UDP and VXLAN headers.
_TUNNEL_OVERHEAD = {4: 50, 6: 70}


def sysctls(seat: Seat, config: LabConfig) -> Mapping[str, str]:
    """What to set below /proc/sys/net before the namespace has a device.

    Addresses are unique by construction, so IPv6 need not wait for duplicate address detection.
    Routes to Services lead through a node on the same link as the client; were a node to forward
    what it does not serve, its redirect would spoil the route for minutes.
    """
    settings = {
        "ipv4/conf/all/accept_redirects": "0",
        "ipv4/conf/default/accept_redirects": "0",
        "ipv6/conf/all/accept_redirects": "0",
        "ipv6/conf/default/accept_redirects": "0",
        "ipv6/conf/all/accept_dad": "0",
        "ipv6/conf/default/accept_dad": "0",
        "ipv6/conf/default/accept_ra": "0",
        "ipv4/conf/all/rp_filter": str(config.rp_filter),
        "ipv4/conf/default/rp_filter": str(config.rp_filter),
    }
    if seat.kind is SeatKind.NODE:
        settings["ipv4/ip_forward"] = "1"
        settings["ipv6/conf/all/forwarding"] = "1"
    return settings


def commands(layout: Layout, seat: Seat) -> list[str]:
    """Lines for `ip -batch` inside the namespace of `seat`; all namespaces exist."""
    makers = {
        SeatKind.UNDERLAY: _underlay,
        SeatKind.NODE: _node,
        SeatKind.POD: _pod,
        SeatKind.CLIENT: _client,
    }
    return ["link set lo up", *makers[seat.kind](layout, seat)]


def forwarding_entries(layout: Layout, seat: Seat) -> list[str]:
    """Lines for `bridge -batch`: where the tunnel devices of the other nodes are."""
    if seat.kind is not SeatKind.NODE or layout.config.cni is not Cni.VXLAN:
        return []
    outer = layout.ranges[0]
    return [
        f"fdb append {tunnel_mac(peer.node)} dev {TUNNEL} dst {outer.node(peer.node)} self"
        for peer in _peers(layout, seat)
    ]


def tunnel_mac(node: int) -> str:
    """The hardware address of a node's tunnel device, locally administered."""
    return f"0e:eb:f1:b0:00:{node:02x}"


def host_devices(config: LabConfig) -> tuple[str, ...]:
    """The devices of a node over which traffic comes from other machines."""
    return (UPLINK, TUNNEL) if config.cni is Cni.VXLAN else (UPLINK,)


def _underlay(layout: Layout, _seat: Seat) -> Iterator[str]:
    yield "link add name br0 type bridge mcast_snooping 0"
    for ranges in layout.ranges:
        yield _add_address(f"{ranges.gateway()}/{ranges.underlay().prefixlen}", "br0")
    # What a host has no route for it refuses over IPv6, though it forwards nothing.
    yield "route add blackhole ::/0"
    yield "link set br0 up"
    for seat in layout.seats():
        if seat.kind in {SeatKind.NODE, SeatKind.CLIENT}:
            yield _add_veth(seat.name, layout.namespace(seat))
            yield f"link set {seat.name} master br0 up"


def _client(layout: Layout, seat: Seat) -> Iterator[str]:
    yield from _join_underlay(layout, seat)
    for ranges in layout.ranges:
        yield f"route add {ranges.external()} via {ranges.node(1)}"


def _node(layout: Layout, seat: Seat) -> Iterator[str]:
    yield from _join_underlay(layout, seat)
    if layout.config.cni is not Cni.PTP:
        yield f"link add name {BRIDGE} mtu {_pod_mtu(layout)} type bridge mcast_snooping 0"
        for ranges in layout.ranges:
            prefix = ranges.pods(seat.node).prefixlen
            yield _add_address(f"{ranges.pod_gateway(seat.node)}/{prefix}", BRIDGE)
        yield f"link set {BRIDGE} up"
    if layout.config.cni is Cni.VXLAN:
        yield from _tunnel(layout, seat)
    else:
        for peer in _peers(layout, seat):
            for ranges in layout.ranges:
                yield f"route add {ranges.pods(peer.node)} via {ranges.node(peer.node)}"
    for pod in layout.pods(seat.node):
        yield from _pod_veth(layout, pod)


def _join_underlay(layout: Layout, seat: Seat) -> Iterator[str]:
    for ranges in layout.ranges:
        yield _add_address(f"{ranges.seat(seat)}/{ranges.underlay().prefixlen}", UPLINK)
        yield f"link set {UPLINK} up"
        yield f"route add default via {ranges.gateway()}"


def _tunnel(layout: Layout, seat: Seat) -> Iterator[str]:
    outer = layout.ranges[0].node(seat.node)
    yield (
        f"link add name {TUNNEL} address {tunnel_mac(seat.node)} mtu {_pod_mtu(layout)} "
        f"type vxlan id 1 local {outer} dev {UPLINK} dstport 8472 nolearning"
    )
    for ranges in layout.ranges:
        yield _add_address(f"{ranges.tunnel(seat.node)}/{ranges.host_bits}", TUNNEL)
    yield f"link set {TUNNEL} up"
    for peer in _peers(layout, seat):
        for ranges in layout.ranges:
            far = ranges.tunnel(peer.node)
            yield f"neigh add {far} lladdr {tunnel_mac(peer.node)} dev {TUNNEL} nud permanent"
            yield f"route add {ranges.pods(peer.node)} via {far} dev {TUNNEL} onlink"


def _pod_veth(layout: Layout, pod: Seat) -> Iterator[str]:
    device = f"veth-{pod.node}-{pod.number}"
    yield _add_veth(device, layout.namespace(pod), _pod_mtu(layout))
    if layout.config.cni is not Cni.PTP:
        yield f"link set {device} master {BRIDGE} up"
        return
    for ranges in layout.ranges:
        yield _add_address(f"{ranges.pod_gateway(pod.node)}/{ranges.host_bits}", device)
    yield f"link set {device} up"
    for ranges in layout.ranges:
        yield f"route add {ranges.seat(pod)}/{ranges.host_bits} dev {device}"


def _pod(layout: Layout, seat: Seat) -> Iterator[str]:
    routed = layout.config.cni is Cni.PTP
    for ranges in layout.ranges:
        prefix = ranges.host_bits if routed else ranges.pods(seat.node).prefixlen
        yield _add_address(f"{ranges.seat(seat)}/{prefix}", UPLINK)
    yield f"link set {UPLINK} up"
    for ranges in layout.ranges:
        gateway = ranges.pod_gateway(seat.node)
        if routed:
            yield f"route add {gateway}/{ranges.host_bits} dev {UPLINK}"
        yield f"route add default via {gateway} dev {UPLINK}"


def _peers(layout: Layout, seat: Seat) -> Iterator[Seat]:
    return (peer for peer in layout.nodes() if peer.node != seat.node)


def _pod_mtu(layout: Layout) -> int:
    if layout.config.cni is not Cni.VXLAN:
        return _UNDERLAY_MTU
    return _UNDERLAY_MTU - _TUNNEL_OVERHEAD[layout.ranges[0].version]


def _add_veth(device: str, peer_namespace: str, mtu: int = _UNDERLAY_MTU) -> str:
    return (
        f"link add name {device} mtu {mtu} type veth "
        f"peer name {UPLINK} mtu {mtu} netns {peer_namespace}"
    )


def _add_address(address: str, device: str) -> str:
    family6 = " nodad" if ":" in address else ""
    return f"addr add {address} dev {device}{family6}"
