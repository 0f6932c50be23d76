# SPDX-License-Identifier: Apache-2.0
"""Whether the maps of a node offer what its manifests say, so that a test can go on."""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.load.pins import Generation, newest_generation
from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.lab import LabNode
from ebpflb.model.address import format_address
from ebpflb.model.changes import Changes
from ebpflb.model.plan import Frontend
from ebpflb.source.manifest import parse_manifest
from tests.e2e.harness.waiting import wait_until


class Offer(NamedTuple):
    """Where the connections to one frontend go."""

    protocol: str
    address: str
    port: int
    local: "frozenset[_Backend]"
    others: "frozenset[_Backend]"
    source_ranges: tuple[str, ...]


class _Backend(NamedTuple):
    address: str
    port: int
    terminating: bool


def wait_in_force(nodes: Iterable[LabNode], timeout: float = 15.0) -> None:
    """Return when the manifests of these nodes are in force there; timeout: seconds for each."""
    for node in nodes:
        wanted = planned(node)
        is_in_force = partial(_is_offered, node, wanted)
        wait_until(is_in_force, f"manifests in force on {node.name}", timeout)


def _is_offered(node: LabNode, wanted: set[Offer]) -> bool:
    return offered(node) == wanted


def planned(node: LabNode) -> set[Offer]:
    """What the manifests of a node say."""
    changes = Changes(node.name)
    for path in sorted(node.manifests.glob("[!.]*")):
        for item in parse_manifest(path.name, path.read_bytes()).objects.values():
            changes.set(item)
    return {_offer(each) for name in changes.names() for each in changes.plan(name)}


def offered(node: LabNode) -> set[Offer]:
    """What the maps of a node say; nothing before an agent has been there."""
    if newest_generation(node.bpffs) is None:
        return set()
    return {_offer(each.frontend) for each in read_frontends(pinned_maps(node))}


def generation_of(node: LabNode) -> Generation:
    """The generation that is in force on a node."""
    found = newest_generation(node.bpffs)
    assert found
    return found


def pinned_maps(node: LabNode) -> MapSet:
    """The maps that are in force on a node."""
    return open_maps(generation_of(node).maps)


def _offer(frontend: Frontend) -> Offer:
    key = frontend.key
    local, others = (
        {_Backend(format_address(each.address), each.port, each.terminating) for each in backends}
        for backends in (frontend.local.backends, frontend.others.backends)
    )
    return Offer(
        key.protocol.name,
        format_address(key.address),
        key.port,
        frozenset(local),
        frozenset(others),
        tuple(map(str, frontend.allowed_sources)),
    )
