# SPDX-License-Identifier: Apache-2.0
"""What the relay tells of all nodes in one stream, as if each of them were followed."""

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing

from msgspec import Struct
from msgspec.json import Decoder

from ebpflb.errors import ClusterError
from ebpflb.from_json import JsonError
from ebpflb.kubectl.asking import NO_AGENT
from ebpflb.kubectl.streams import Streams, StreamState
from ebpflb.model.flow import Name, read_watch_line

RELAY = "the relay"
"""In place of a node, for what concerns all of them; no node is called so, with a space."""

# In place of an empty line, which Streams keeps to itself.
_ALIVE = " "


class _OfNode(Struct):
    """Of a flow as JSON, where it comes from; empty if the relay itself has lost it."""

    node: Name = ""


_node_of = Decoder(_OfNode).decode


class RelayStreams:
    """As Streams, of one stream, which is begun again after a pause when it breaks off.

    As Streams reports every attempt to follow a node, this one repeats the state of silent nodes
    now and then. A line that cannot be read is one of RELAY.
    """

    def __init__(self, follow: Callable[[], Generator[str, None, None]], **periods: float) -> None:
        """`follow`: see Relay.follow(). `periods`: those of Streams."""
        self._follow = follow
        self._first: Generator[str, None, None] | None = None
        self._streams = Streams(lambda: {RELAY: self._lines}, **periods)
        self._states: dict[str, StreamState] = {}

    @property
    def followed(self) -> Collection[str]:
        """The nodes with an agent of which the relay tells; none while it has broken off."""
        return {node for node, state in self._states.items() if state.why != NO_AGENT}

    def open(self) -> None:
        """Have the relay begin. Raises what Relay.follow() does."""
        self._first = self._follow()

    def start(self) -> None:
        """Open, unless that has been done."""
        if not self._first:
            self.open()
        self._streams.start()

    def stop(self) -> None:
        self._streams.stop()

    def __iter__(self) -> Iterator[tuple[str, str | StreamState]]:
        for _, what in self._streams:
            if isinstance(what, StreamState):
                # Once it runs again, it tells all that it knows.
                self._states.clear()
                yield RELAY, what
            elif what == _ALIVE:
                yield from [(node, state) for node, state in self._states.items() if not state.runs]
            else:
                yield self._told(what)

    def _lines(self) -> Generator[str, None, None]:
        begun, self._first = self._first, None
        with closing(begun or self._follow()) as lines:
            for line in lines:
                yield line or _ALIVE
        raise ClusterError("the relay has stopped")

    def _told(self, line: str) -> tuple[str, str | StreamState]:
        try:
            found = read_watch_line(line)
            if isinstance(found, str):
                return _node_of(found).node or RELAY, found
        except (JsonError, ValueError, RecursionError):
            # Not the line itself, which might be read as a flow.
            return RELAY, ""
        state = self._states[found.node] = StreamState(found.runs, found.why)
        return found.node, state
