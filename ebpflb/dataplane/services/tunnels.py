# SPDX-License-Identifier: Apache-2.0
"""DSR's maps about other nodes: where tunnels lead (lb_pod_nodes), and come from (lb_nodes).

An element is never replaced, because a program might see half of it: it is deleted and reinserted.
In between, packets for the pod are masqueraded.
"""

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from errno import E2BIG

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.errors import MapError
from ebpflb.log import fields
from ebpflb.model.address import Address, Family, family_of
from ebpflb.model.dsr import TunnelChange

_log = logging.getLogger("ebpflb.dataplane")

_IS_PEER = b"\1"


class TunnelMaps:
    """The desired contents of the maps, in every generation. For one thread, except the counts."""

    def __init__(self) -> None:
        # The addresses by which other nodes know this one, best first.
        self.own: Sequence[Address] = ()
        self._pods: Mapping[Family, dict[Address, Address]] = {family: {} for family in Family}
        self._peers: dict[Address, bytes] = {}
        # Pods whose existing tunnel may continue -> the node.
        self._undecided: dict[Address, Address] = {}
        self._changed_pods: set[Address] = set()
        self._changed_peers: set[Address] = set()
        self._families: frozenset[Family] = frozenset()
        self._keeps_others = False
        # The maps known to match, except for later changes.
        self._written: MapSet | None = None

    @property
    def pods(self) -> int:
        """How many pods are reached through tunnels."""
        return sum(len(self._pods[family]) for family in self._families)

    @property
    def peers(self) -> int:
        """How many addresses tunnels may come from."""
        return len(self._peers)

    def sources(self, here: Container[Address]) -> Mapping[Family, Address]:
        """The tunnels' source addresses: other nodes accept packets from no others.

        `here`: the addresses of this machine.
        """
        return {family_of(each): each for each in reversed(self.own) if each in here}

    def follow(self, change: TunnelChange, *, keep_others: bool, compare: bool) -> None:
        """Record a change for `write()`.

        `keep_others`: elements of an earlier run that are in no change stay. `compare`: it
        compares the full contents of the maps.
        """
        self.own = change.own
        for address, is_peer in change.peers.items():
            self._peers.pop(address, None)
            if is_peer:
                self._peers[address] = _IS_PEER
        for pod, node in change.pods.items():
            pods = self._pods[family_of(pod)]
            pods.pop(pod, None)
            self._undecided.pop(pod, None)
            if node:
                pods[pod] = node
        self._undecided.update(change.undecided)
        self._changed_peers.update(change.peers)
        self._changed_pods.update(change.pods)
        if compare or keep_others is not self._keeps_others:
            self._written = None
        self._keeps_others = keep_others

    def write(self, maps: MapSet, families: Iterable[Family]) -> None:
        """Bring a generation's maps in line. Pods of other families have no element.

        After a MapError, the next call makes up for it.
        """
        self._decide(maps["lb_pod_nodes"])
        admitted = frozenset(families)
        if admitted != self._families or self._written is not maps:
            self._families = admitted
            self._changed_peers |= self._peers.keys() | self._others(maps["lb_nodes"])
            self._changed_pods |= self._others(maps["lb_pod_nodes"]).union(*self._pods.values())
        _bring_in_line(maps["lb_nodes"], {k: self._peers.get(k) for k in self._changed_peers})
        _bring_in_line(maps["lb_pod_nodes"], {k: self._node_of(k) for k in self._changed_pods})
        self._changed_peers, self._changed_pods = set(), set()
        self._written = maps

    def _decide(self, present: BpfMap) -> None:
        for pod, node in self._undecided.items():
            if present.lookup(pod) == node:
                self._pods[family_of(pod)][pod] = node
        self._undecided = {}

    def _node_of(self, pod: Address) -> Address | None:
        family = family_of(pod)
        return self._pods[family].get(pod) if family in self._families else None

    def _others(self, target: BpfMap) -> set[Address]:
        return set() if self._keeps_others else {Address(key) for key, _ in target.items()}


def _bring_in_line(target: BpfMap, wanted: Mapping[Address, bytes | None]) -> None:
    """None: no element. Deletes before it inserts, to make room."""
    missing, left_out = [], 0
    for key, value in wanted.items():
        present = target.lookup(key)
        if present is not None and present != value:
            target.delete(key)
        if value is not None and present != value:
            missing.append((key, value))
    for key, value in missing:
        try:
            target.update(key, value)
        except MapError as error:
            if error.errno != E2BIG:
                raise
            left_out += 1
    if left_out:
        text = "map full: packets for these pods are masqueraded, or not accepted from these nodes"
        _log.warning(text, extra=fields(map=target.name, count=left_out))
