# SPDX-License-Identifier: Apache-2.0
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice, pairwise

import pytest

from ebpflb.errors import ClusterError
from ebpflb.kubectl.streams import Lines, Streams, StreamState

RUNS = StreamState(runs=True)
STOPPED = StreamState(runs=False, why="the agent has stopped")
GONE = StreamState(runs=False, why="is gone")


class World:
    """Nodes with what their agents print. looks: how often they were looked for.

    becomes: from the second look on; None: there is trouble.
    """

    def __init__(self, **lines: Lines) -> None:
        self.lines: Mapping[str, Lines] | None = lines
        self.becomes: Mapping[str, Lines] | None = lines
        self.looks = 0

    def find(self) -> Mapping[str, Lines]:
        self.looks += 1
        found, self.lines = self.lines, self.becomes
        if found is None:
            raise ClusterError("the API server is gone")
        return found


def says(*lines: str) -> Lines:
    """A stream of these lines, whenever it is begun."""

    def stream():
        yield from lines

    return stream


def fails(error: Exception) -> Lines:
    def stream():
        yield from ()
        raise error

    return stream


@pytest.fixture
def follow():
    """Begin to follow with these periods."""
    begun = []

    def start(find: Callable[[], Mapping[str, Lines]], pause: float, look: float = 60.0) -> Streams:
        made = Streams(find, pause, look)
        begun.append(made)
        made.start()
        return made

    yield start
    for each in begun:
        each.stop()


def first(count, streams):
    return list(islice(streams, count))


def test_lines_of_all_nodes_come_with_what_becomes_of_the_streams(follow):
    world = World(a=says("1", "", "2"), b=fails(ClusterError("is gone")), c=fails(ValueError("x")))
    found = first(6, follow(world.find, pause=60))
    by_node = {node: [what for each, what in found if each == node] for node in "abc"}
    bug = StreamState(runs=False, why="unexpected ValueError: x")
    assert by_node == {"a": [RUNS, "1", "2", STOPPED], "b": [GONE], "c": [bug]}


def test_a_stream_that_ends_is_begun_again_where_the_agent_is_then(follow):
    world = World(a=says("old"))
    world.becomes = {"a": says("new")}
    streams = follow(world.find, pause=0.02)
    assert [what for _, what in first(6, streams)] == [RUNS, "old", STOPPED, RUNS, "new", STOPPED]


def test_one_look_serves_all_streams_that_end(follow):
    world = World(**{f"node{number}": says("line") for number in range(40)})
    list(first(200, follow(world.find, pause=1)))
    assert world.looks <= 8


def test_pauses_grow_while_a_node_does_not_answer(follow):
    begun = []

    def stream():
        begun.append(time.monotonic())
        yield from ()
        raise ClusterError("is gone")

    first(5, follow(World(a=stream).find, pause=0.02, look=0.1))
    gaps = [after - before for before, after in pairwise(begun)][:4]
    assert all(gap >= least for gap, least in zip(gaps, (0.02, 0.04, 0.08, 0.1), strict=True))


def test_a_node_that_comes_is_followed(follow):
    world = World(a=says())
    world.becomes = {"a": says(), "b": says("1")}
    found = first(4, follow(world.find, pause=1000, look=0.05))
    assert ("a", STOPPED) in found
    assert [what for node, what in found if node == "b"] == [RUNS, "1", STOPPED]


def test_a_node_that_goes_is_followed_no_more(follow):
    world = World(a=says())
    world.becomes = {"b": says("1")}
    others = [("b", what) for what in (RUNS, "1", STOPPED)]
    assert first(7, follow(world.find, pause=0.02, look=1000)) == [("a", STOPPED), *others, *others]


def test_without_the_api_server_the_nodes_stay_as_they_were(follow):
    world = World(a=says("1"))
    world.becomes = None
    streams = follow(world.find, pause=0.02, look=0.02)
    assert [what for _, what in first(6, streams)] == [RUNS, "1", STOPPED] * 2


def test_it_does_not_start_without_nodes(follow):
    world = World()
    world.lines = None
    with pytest.raises(ClusterError, match="API server"):
        follow(world.find, pause=1)


def test_who_stops_reading_ends_all_streams(follow):
    ended = threading.Semaphore(0)

    def forever(line):
        try:
            while True:
                time.sleep(0.001)
                yield line
        finally:
            ended.release()

    # One that waits for a slow reader, and one that has nothing to say.
    world = World(a=partial(forever, "line"), b=partial(forever, ""))
    streams = follow(world.find, pause=60)
    first(3, streams)
    streams.stop()
    assert [ended.acquire(timeout=60) for _ in "ab"] == [True, True]
    assert list(streams) == []
