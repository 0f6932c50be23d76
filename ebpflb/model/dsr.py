# SPDX-License-Identifier: Apache-2.0
"""Direct server return: which node packets for a pod go to, and which nodes to accept them from."""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from ebpflb.model.address import Address, Family, family_of
from ebpflb.model.node import Node
from ebpflb.model.plan import Frontend
from ebpflb.model.service import ServiceName

# Instead of a node's name, if the endpoints of one Service place a pod on several nodes.
_UNCERTAIN = ""


class Peer(NamedTuple):
    """Another node in one family: firewalls and routes of the two families differ."""

    node: str
    family: Family


class Reachability(Enum):
    """Of a peer, through a tunnel. UNKNOWN: it has not answered yet, but may."""

    UNKNOWN = "unknown"
    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"


class TunnelChange(NamedTuple):
    """pods: for each pod that may have changed, its node's address, or None to send it nothing.

    peers: for each address that may have changed, whether it is another node's. own: the
    addresses by which other nodes know this one, internal ones first. undecided: the pods with None
    whose node has not answered yet but may: packets already going there, as after a restart of the
    agent, may continue.
    """

    pods: Mapping[Address, Address | None]
    peers: Mapping[Address, bool]
    own: tuple[Address, ...]
    undecided: Mapping[Address, Address] = MappingProxyType({})


class Tunnels:
    """The other nodes, and their pods that Service ports with DSR send to. For one thread.

    Packets go to a pod's node if all Services agree on the node, and it is known, is reachable, and
    has an internal address of the pod's family.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._own: tuple[Address, ...] = ()
        self._peers_found: Mapping[Peer, Reachability] = {}
        self._pods: dict[ServiceName, Mapping[Address, str]] = {}
        # Pod -> the name of its node, once for each Service.
        self._places: dict[Address, tuple[str, ...]] = {}
        # How many times pods are placed on a node.
        self._pods_at: Counter[Peer] = Counter()
        self._peers: Counter[Address] = Counter()
        # Since the last take().
        self._changed_pods: set[Address] = set()
        self._changed_nodes: set[str] = set()
        self._changed_peers: set[Address] = set()
        self._is_own_new = False
        # Since the last take_targets().
        self._are_targets_new = False

    @property
    def has_changed(self) -> bool:
        """Whether take() has anything to return."""
        changed = self._changed_pods or self._changed_nodes or self._changed_peers
        return bool(changed) or self._is_own_new

    def set_own(self, node: Node | None) -> None:
        """Set this node's Node; its addresses never count as another node's."""
        own = node.addresses if node else ()
        if own != self._own:
            self._changed_peers.update(own, self._own)
            self._own, self._is_own_new = own, True

    def set_node(self, name: str, node: Node | None) -> None:
        """Set another node; None: it is gone."""
        old = self._nodes.pop(name, None)
        if node:
            self._nodes[name] = node
        before, after = (each.addresses if each else () for each in (old, node))
        self._peers.update(after)
        self._peers.subtract(before)
        for address in before:
            if not self._peers[address]:
                del self._peers[address]
        self._changed_peers.update(set(before) ^ set(after))
        if old is None or node is None or old.internal != node.internal:
            self._changed_nodes.add(name)
            self._are_targets_new = True

    def set_reachable(self, found: Mapping[Peer, Reachability]) -> None:
        """Set which peers can be reached through a tunnel; all others are unknown."""
        before, unknown = self._peers_found, Reachability.UNKNOWN
        self._peers_found = {peer: each for peer, each in found.items() if each is not unknown}
        changed = before.items() ^ self._peers_found.items()
        self._changed_nodes.update(peer.node for peer, _ in changed)

    def set_services(
        self, planned: Mapping[ServiceName, Iterable[Frontend]], *, others_gone: bool = False
    ) -> None:
        """Set the frontends of these Services; one without frontends is gone."""
        for name, frontends in planned.items():
            self._set_service(name, _pods_elsewhere(frontends))
        if others_gone:
            for name in self._pods.keys() - planned.keys():
                self._set_service(name, {})

    def take(self) -> TunnelChange:
        """What may have changed since the last call."""
        if self._changed_nodes:
            self._changed_pods.update(
                pod
                for pod, nodes in self._places.items()
                if not self._changed_nodes.isdisjoint(nodes)
            )
        own = set(self._own)
        ways = {pod: self._way(pod) for pod in self._changed_pods}
        known = {pod: to for pod, (to, found) in ways.items() if found is Reachability.REACHABLE}
        change = TunnelChange(
            {pod: known.get(pod) for pod in ways},
            {each: each in self._peers and each not in own for each in self._changed_peers},
            self._own,
            {pod: to for pod, (to, found) in ways.items() if to and found is Reachability.UNKNOWN},
        )
        self._changed_pods, self._changed_nodes, self._changed_peers = set(), set(), set()
        self._is_own_new = False
        return change

    def take_targets(self) -> Mapping[Peer, Address] | None:
        """The peers with such pods -> their addresses; None if nothing may have changed."""
        if not self._are_targets_new:
            return None
        self._are_targets_new = False
        addresses = {peer: self._address_of(peer) for peer in self._pods_at}
        return {peer: address for peer, address in addresses.items() if address}

    def _address_of(self, peer: Peer) -> Address | None:
        node = self._nodes.get(peer.node)
        return node.internal.get(peer.family) if node else None

    def _way(self, pod: Address) -> tuple[Address | None, Reachability]:
        names = set(self._places.get(pod, ()))
        peer = Peer(names.pop() if len(names) == 1 else _UNCERTAIN, family_of(pod))
        return self._address_of(peer), self._peers_found.get(peer, Reachability.UNKNOWN)

    def _set_service(self, name: ServiceName, pods: Mapping[Address, str]) -> None:
        before = self._pods.pop(name, {})
        if pods:
            self._pods[name] = pods
        for pod in before.keys() | pods.keys():
            old, new = before.get(pod), pods.get(pod)
            if old != new:
                self._replace_place(pod, old, new)

    def _replace_place(self, pod: Address, old: str | None, new: str | None) -> None:
        places = [*self._places.pop(pod, ())]
        if old is not None:
            places.remove(old)
            self._count_pod(Peer(old, family_of(pod)), -1)
        if new is not None:
            places.append(new)
            self._count_pod(Peer(new, family_of(pod)), 1)
        if places:
            self._places[pod] = tuple(places)
        self._changed_pods.add(pod)

    def _count_pod(self, peer: Peer, change: int) -> None:
        is_new = peer not in self._pods_at
        self._pods_at[peer] += change
        if not self._pods_at[peer]:
            del self._pods_at[peer]
        self._are_targets_new |= is_new or peer not in self._pods_at


def _pods_elsewhere(frontends: Iterable[Frontend]) -> Mapping[Address, str]:
    """The pods that external packets may be sent to, with the names of their nodes."""
    found: dict[Address, str] = {}
    for frontend in frontends:
        for backend in frontend.others.backends if frontend.dsr else ():
            if backend.node and found.setdefault(backend.address, backend.node) != backend.node:
                found[backend.address] = _UNCERTAIN
    return found
