# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.from_json import JsonError
from ebpflb.model.flow import LostFlows, flow_line, read_flow
from ebpflb.model.watched import FollowedNode, read_watch_line, watch_line
from tests.unit.kubectl.answers import flow, lines


@pytest.mark.parametrize(
    "node", [FollowedNode("a", runs=True), FollowedNode("b\x1b", runs=False, why="gone \u202e")]
)
def test_the_state_of_a_node_is_read_as_it_was_written(node):
    line = watch_line(node)
    assert line.endswith(b"}\n")
    assert read_watch_line(line) == node


def test_a_flow_is_read_as_it_was_written():
    for each in (read_flow(lines(flow(1, client={"address": "10.1.0.1"}))), LostFlows(lost=3)):
        found = read_watch_line(watch_line(each))
        assert isinstance(found, str)
        assert found.encode() + b"\n" == flow_line(each)


@pytest.mark.parametrize(
    "line",
    [
        *("", "{", "[]", "1", '{"type": "ADDED"}', '{"type": "DELETED", "object": {}}'),
        *('{"type": "NODE", "object": {}}', '{"type": "NODE", "object": {"node": 1, "runs": 1}}'),
        '{"type": "NODE", "object": ' + "[" * 100_000,
        b'{"type": "ADDED", "object": "\xff"}',
    ],
)
def test_any_other_line_is_an_error(line):
    with pytest.raises(JsonError):
        read_watch_line(line)
