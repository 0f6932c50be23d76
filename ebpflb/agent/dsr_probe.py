# SPDX-License-Identifier: Apache-2.0
"""Asks other nodes on a timer of the loop whether they take part in DSR, and reports changes."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping

from ebpflb.agent.interface import Dataplane
from ebpflb.agent.status import AgentStatus
from ebpflb.agent.timers import Task, Timers
from ebpflb.dataplane.doctor.finding import examples
from ebpflb.log import fields
from ebpflb.model.dsr import Peer, Reachability, Tunnels
from ebpflb.model.dsr_probe import Probes

_log = logging.getLogger("ebpflb.agent")

_NONCE_BYTES = 16
# How long to wait for more answers before logging a change.
_GATHER_SECONDS = 5.0


class DsrProbing:
    """Asks nobody while no Service with DSR has pods on other nodes."""

    def __init__(
        self,
        tunnels: Tunnels | None,
        dataplane: Dataplane,
        status: AgentStatus,
        timers: Timers,
        clock: Callable[[], float],
    ) -> None:
        """`tunnels`: None without DSR. `clock`: seconds."""
        self._probes = Probes(lambda: os.urandom(_NONCE_BYTES))
        self._tunnels = tunnels
        self._dataplane = dataplane
        self._status = status
        self._timers = timers
        self._clock = clock
        self._told: Mapping[Peer, Reachability] = {}
        self._news_since: float | None = None
        if tunnels:
            status.set_dsr_peers(self._probes)

    def run(self) -> None:
        """Take the answers that arrived, and send questions. `follow()` does the rest."""
        now = self._clock()
        for address, nonce in self._dataplane.take_answers():
            self._probes.take_answer(address, nonce, now)
        for question in self._probes.take_questions(now):
            if why := self._dataplane.ask_peer(question):
                self._probes.note_failure(question, why)

    def follow(self) -> bool:
        """Update the nodes to ask. Returns whether the reachability of any node has changed."""
        if self._tunnels is None:
            return False
        now = self._clock()
        targets = self._tunnels.take_targets()
        if targets is not None:
            self._probes.follow(targets, now)
            self._timers.start(Task.PROBE, 0)
        elif (wait := self._probes.wait(now)) is not None:
            self._timers.ensure(Task.PROBE, wait)
        has_changed = self._probes.take_change()
        if has_changed:
            self._tunnels.set_reachable(self._probes.found)
            self._status.set_dsr_peers(self._probes)
            self._news_since = now if self._news_since is None else self._news_since
        self._tell(now)
        return has_changed

    def _tell(self, now: float) -> None:
        if self._news_since is None:
            return
        found = self._probes.found
        is_late = now - self._news_since >= _GATHER_SECONDS
        if Reachability.UNKNOWN in found.values() and not is_late:
            return
        self._news_since = None
        known = {peer: each for peer, each in found.items() if each is not Reachability.UNKNOWN}
        news = dict(known.items() - self._told.items())
        self._told = known
        if yes := [peer for peer, each in news.items() if each is Reachability.REACHABLE]:
            _log.info("nodes accept DSR packets", extra=self._fields(yes))
        if no := [peer for peer, each in news.items() if each is Reachability.UNREACHABLE]:
            text = "nodes do not answer on the DSR port: packets for their pods are masqueraded"
            whys = sorted({self._probes.unreachable[peer] for peer in no})
            _log.warning(text, extra=self._fields(no, why=", ".join(whys)))

    @staticmethod
    def _fields(peers: Iterable[Peer], **more: object) -> dict[str, object]:
        names = sorted(f"{peer.node} ({peer.family.text})" for peer in peers)
        return fields(nodes=examples(names), count=len(names), **more)
