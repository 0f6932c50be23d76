# SPDX-License-Identifier: Apache-2.0
"""The flows of all agents as they happen: one stream from each, for any number of watchers."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from urllib.parse import urlencode

from ebpflb.errors import ClusterError
from ebpflb.from_json import JsonError
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import NO_AGENT
from ebpflb.kubectl.streams import Lines, Streams, StreamState
from ebpflb.model.flow import Flow, FollowedNode, LostFlows, read_flow
from ebpflb.observe.flows.history import FlowHistory
from ebpflb.relay.exchange import Exchange

Watched = Flow | LostFlows | FollowedNode

_KEPT = 8192
_LOOK_SECONDS = 1.0
_LONGEST_LINE = 64 << 10
_FLOWS = f"/v1/flows?{urlencode({'follow': '1', 'limit': '0'})}"


class FlowHub:
    """Follows the agents while anybody watches. Thread-safe."""

    def __init__(
        self,
        agents: Callable[[], list[RemoteAgent]],
        open_exchange: Callable[[RemoteAgent], Exchange],
    ) -> None:
        """`agents`: those there are now. ClusterError. `open_exchange`: OSError."""
        self._agents = agents
        self._open = open_exchange
        self._history = FlowHistory[Watched](_KEPT)
        self._states: dict[str, FollowedNode] = {}
        self._lock = threading.Lock()
        self._watchers = 0
        self._streams: Streams | None = None

    def watch(self) -> Iterator[list[Watched]]:
        """What happens from now on, first which nodes are followed; something every second.

        A watcher that is too slow is told how many it has missed. ClusterError.
        """
        with self._watching() as (number, states):
            yield states
            while True:
                batch = self._history.since(number, _LOOK_SECONDS)
                number = batch.end
                lost = [LostFlows(lost=batch.lost)] if batch.lost else []
                yield [*lost, *batch.records]

    @contextmanager
    def _watching(self) -> Iterator[tuple[int, list[Watched]]]:
        """The number of the first record, and what was known before it."""
        with self._lock:
            number = self._history.end
            if not self._watchers:
                self._start()
            states: list[Watched] = [*self._states.values()] if self._watchers else []
            self._watchers += 1
        try:
            yield number, states
        finally:
            with self._lock:
                self._watchers -= 1
                if not self._watchers and self._streams:
                    self._streams.stop()
                    self._streams = None

    def _start(self) -> None:
        self._states.clear()
        streams = Streams(self._find)
        streams.start()
        self._streams = streams
        threading.Thread(
            target=self._take, args=(streams,), name="relay-follow", daemon=True
        ).start()

    def _find(self) -> Mapping[str, Lines]:
        return {each.node: partial(self._lines, each) for each in self._agents()}

    def _take(self, streams: Streams) -> None:
        for node, what in streams:
            if isinstance(what, StreamState):
                self._note(FollowedNode(node, what.runs, what.why))
            else:
                self._add(node, what)

    def _note(self, state: FollowedNode) -> None:
        known, self._states[state.node] = self._states.get(state.node), state
        # A node that stays silent is tried again and again.
        if known != state:
            self._history.add([state])

    def _add(self, node: str, line: str) -> None:
        try:
            found = read_flow(line)
        except JsonError:
            found = LostFlows(lost=1)
        found.node = node
        self._history.add([found])

    def _lines(self, agent: RemoteAgent) -> Generator[str, None, None]:
        """Of an agent's stream; an empty one now and then. ClusterError."""
        if not agent.address:
            raise ClusterError(NO_AGENT)
        rest = b""
        try:
            with self._open(agent) as exchange:
                if (status := exchange.ask(_FLOWS, None)) != HTTPStatus.OK:
                    raise ClusterError(f"the agent answers {status}")
                for piece in exchange.pieces(None):
                    *lines, rest = (rest + piece).split(b"\n")
                    yield from (each.decode(errors="replace") for each in lines or [b""])
                    if len(rest) > _LONGEST_LINE:
                        raise ClusterError("sends a line without an end")
        except OSError as error:
            raise ClusterError(f"cannot be followed: {error.strerror or error}") from error
