# SPDX-License-Identifier: Apache-2.0
"""A cluster's network namespaces and the links between them, as lines for `ip -batch`."""

import subprocess
from collections.abc import Iterator

from ebpflb.lab import namespaces
from tests.cluster.harness.layout import EXTERNAL, EXTERNAL6, Layout

_DEVICE = "eth0"


def make(layout: Layout) -> None:
    """Create and connect all namespaces of a cluster. OSError when one exists already."""
    underlay = layout.namespace("underlay")
    namespaces.create(underlay)
    for member in layout.members():
        namespaces.create(layout.namespace(member))
        with namespaces.entered(namespaces.path_of(layout.namespace(member))):
            namespaces.write_sysctls(_sysctls(member))
    _run_in(underlay, _underlay(layout))
    _run(_machine(layout))
    _run_in(underlay, iter(["link set machine master br0 up"]))
    for member in layout.members():
        _run_in(layout.namespace(member), _member(layout, member))


def route_pods(layout: Layout) -> None:
    """Add routes to the pod range of each node, on the nodes and the control plane."""
    for member in ("control", *layout.node_names()):
        _run_in(layout.namespace(member), _pod_routes(layout, member))


def remove(layout: Layout) -> None:
    """Remove what `make` created, or the part of it that exists."""
    for member in ("underlay", *layout.members()):
        namespaces.delete(layout.namespace(member), None)
    subprocess.run(
        ["ip", "link", "del", layout.machine_device],
        stderr=subprocess.DEVNULL,
        check=False,
    )


def _sysctls(member: str) -> dict[str, str]:
    """Sysctls that are set before any device exists.

    A redirect would tell the client to bypass a node for an address that no node serves yet, and
    the client would keep that route.
    """
    settings = {
        "ipv4/conf/all/send_redirects": "0",
        "ipv4/conf/default/send_redirects": "0",
        "ipv6/conf/all/accept_redirects": "0",
        "ipv6/conf/default/accept_redirects": "0",
        "ipv4/conf/all/rp_filter": "0",
        "ipv4/conf/default/rp_filter": "0",
        "ipv6/conf/default/accept_ra": "0",
        "ipv6/conf/default/accept_dad": "0",
    }
    if member.startswith("node"):
        settings["ipv4/ip_forward"] = "1"
        settings["ipv6/conf/all/forwarding"] = "1"
    return settings


def _underlay(layout: Layout) -> Iterator[str]:
    yield "link set lo up"
    yield "link add name br0 type bridge mcast_snooping 0"
    yield from _addresses(layout, "gateway", "br0")
    yield "link set br0 up"
    for member in layout.members():
        peer = layout.namespace(member)
        yield f"link add name {member} type veth peer name {_DEVICE} netns {peer}"
        yield f"link set {member} master br0 up"


def _machine(layout: Layout) -> Iterator[str]:
    device, underlay = layout.machine_device, layout.namespace("underlay")
    yield f"link add name {device} type veth peer name machine netns {underlay}"
    yield from _addresses(layout, "machine", device)
    yield f"link set {device} up"


def _member(layout: Layout, member: str) -> Iterator[str]:
    yield "link set lo up"
    yield from _addresses(layout, member, _DEVICE)
    yield f"link set {_DEVICE} up"
    yield f"route add default via {layout.address('gateway')}"
    yield f"route add default via {layout.address6('gateway')}"
    if member == "client":
        yield f"route add {EXTERNAL} via {layout.address('node1')}"
        yield f"route add {EXTERNAL6} via {layout.address6('node1')}"


def _pod_routes(layout: Layout, member: str) -> Iterator[str]:
    for node in layout.node_names():
        if node != member:
            yield f"route add {layout.pods(node)} via {layout.address(node)}"
            yield f"route add {layout.pods6(node)} via {layout.address6(node)}"


def _addresses(layout: Layout, member: str, device: str) -> Iterator[str]:
    yield f"addr add {layout.address(member)}/24 dev {device}"
    yield f"addr add {layout.address6(member)}/64 dev {device} nodad"


def _run_in(namespace: str, lines: Iterator[str]) -> None:
    with namespaces.entered(namespaces.path_of(namespace)):
        _run(lines)


def _run(lines: Iterator[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    subprocess.run(["ip", "-batch", "-"], input=text, text=True, check=True)
