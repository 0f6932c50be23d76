# SPDX-License-Identifier: Apache-2.0
"""Waits until a node's maps match its manifests, and watches maps meanwhile."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import NamedTuple

from ebpflb.dataplane.explain.choice import frontend_in_force
from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.layout.records import SocketRecord
from ebpflb.dataplane.load.pins import Generation, newest_generation
from ebpflb.errors import PinError
from ebpflb.lab import Lab, LabNode
from ebpflb.model.address import WILDCARD, Protocol, family_of, format_address
from ebpflb.model.changes import Changes
from ebpflb.model.objects.kinds import ApiObject
from ebpflb.model.plan import Frontend, FrontendKey
from ebpflb.source.manifest import parse_manifest
from tests.builders import service_cidr_manifest
from tests.e2e.harness.waiting import PATIENCE, repeated, wait_until
from tests.e2e.mode import present_mode

_RANGES_FILE = "service-cidrs.yaml"


class Offer(NamedTuple):
    """The backends of one frontend."""

    protocol: str
    address: str
    port: int
    local: "frozenset[_Backend]"
    others: "frozenset[_Backend]"
    source_ranges: tuple[str, ...]
    scheduler: str
    limits: str


class _Backend(NamedTuple):
    address: str
    port: int
    terminating: bool
    weight: int


def wait_in_force(nodes: Iterable[LabNode], timeout: float = PATIENCE) -> None:
    """Return when the manifests of these nodes are in force; timeout: seconds for each node."""
    for node in nodes:
        wanted = planned(node)
        is_in_force = partial(_is_offered, node, wanted)
        wait_until(is_in_force, f"manifests in force on {node.name}", timeout)


def _is_offered(node: LabNode, wanted: set[Offer]) -> bool:
    return offered(node) == wanted


def planned(node: LabNode) -> set[Offer]:
    """What the manifests of a node ask for."""
    changes = Changes(node.name, defaults=present_mode().defaults)
    for path in sorted(node.manifests.glob("[!.]*")):
        for item in _objects(path.name, path.read_bytes()):
            changes.set(item)
    changes.take()
    return {_offer(each) for name in changes.names() for each in changes.plan(name)}


@cache
def _objects(name: str, content: bytes) -> tuple[ApiObject, ...]:
    return tuple(parse_manifest(name, content).objects.values())


def offered(node: LabNode) -> set[Offer]:
    """What the maps of a node contain; empty before the first agent.

    Looked up one by one, because reading all maps takes a fifth of a second.
    """
    if newest_generation(node.bpffs) is None:
        return set()
    lookups = Lookups(pinned_maps(node))
    places = (SocketRecord.unpack(key) for key, _ in lookups.maps["lb_frontends"].items())
    keys = (FrontendKey(each.address, each.port, Protocol(each.protocol)) for each in places)
    descs = (lookups.frontend_lookup(key) for key in keys if _is_looked_up(lookups, key))
    return {_offer(frontend_in_force(lookups, desc)) for desc in descs if desc}


def _is_looked_up(lookups: Lookups, key: FrontendKey) -> bool:
    """Whether packets to it are looked up, which an agent enables last."""
    family = family_of(key.address)
    if key.address == WILDCARD[family]:
        key = key._replace(address=lookups.node_address(family))
    return bool(lookups.may_be_request(key) and lookups.addr_flags_of(key.address))


def generation_of(node: LabNode) -> Generation:
    """The current generation on a node."""
    found = newest_generation(node.bpffs)
    assert found
    return found


def pinned_maps(node: LabNode) -> MapSet:
    """The current maps of a node. Those of an earlier generation may be removed meanwhile."""
    while True:
        generation = generation_of(node)
        try:
            return open_maps(generation.maps)
        except PinError:
            if generation_of(node) == generation:
                raise


def _offer(frontend: Frontend) -> Offer:
    key = frontend.key
    local, others = (
        {
            _Backend(format_address(each.address), each.port, each.terminating, each.weight)
            for each in backends
        }
        for backends in (frontend.local.backends, frontend.others.backends)
    )
    return Offer(
        key.protocol.name,
        format_address(key.address),
        key.port,
        frozenset(local),
        frozenset(others),
        tuple(map(str, frontend.allowed_sources)),
        frontend.scheduler,
        str(frontend.limits),
    )


Contents = frozenset[tuple[bytes, bytes]]


@contextmanager
def watched(node: LabNode, names: Collection[str]) -> Iterator[Mapping[str, set[Contents]]]:
    """All contents that these maps of the present generation have meanwhile: look afterwards."""
    maps = pinned_maps(node)
    seen: dict[str, set[Contents]] = {name: set() for name in names}

    def look() -> None:
        for name in names:
            seen[name].add(frozenset(maps[name].items()))

    with repeated(look):
        yield seen


@contextmanager
def service_ranges(lab: Lab) -> Iterator[None]:
    """The lab's Service addresses are in a ServiceCIDR."""
    (node, *_), ranges = lab.nodes, [str(each.services()) for each in lab.layout.ranges]
    lab.write_manifests([service_cidr_manifest("kubernetes", *ranges)], _RANGES_FILE)
    try:
        wait_until(lambda: _has_ranges(node), "the ranges of Services are in force")
        yield
    finally:
        lab.remove_manifests(_RANGES_FILE)
    wait_until(lambda: not _has_ranges(node), "they are forgotten")


def _has_ranges(node: LabNode) -> bool:
    (_, value), *_ = pinned_maps(node)["lb_service_nets"].items()
    return any(value)
