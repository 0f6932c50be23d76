# SPDX-License-Identifier: Apache-2.0
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from ebpflb.dataplane.layout.enums import FlowEnd, word
from ebpflb.from_json import JsonError
from ebpflb.model.flow import (
    MEASURES,
    Flow,
    FlowBackend,
    FlowClient,
    FlowFrontend,
    FlowTime,
    FollowedNode,
    LostFlows,
    flow_id,
    flow_line,
    frontend_type,
    read_flow,
    read_flow_time,
    read_watch_line,
    time_of_id,
    verdict_of,
    watch_line,
)
from ebpflb.words.connections import FAILURES, VERDICTS
from tests.builders import address, service_port

PORT = service_port(
    "10.96.0.10",
    node_port=30080,
    external_ips=(address("192.0.2.1"),),
    load_balancer_ips=(address("192.0.2.2"),),
)


def flow(**others: Any) -> Flow:
    """With what every flow has, and `others`."""
    fields: dict[str, Any] = {
        "time": "2026-11-23T10:00:00.000000001Z",
        "event": "end",
        "verdict": "forwarded",
        "protocol": "TCP",
        "path": "tc",
        "frontend": FlowFrontend(address="10.96.0.10", port=80),
        "seq": 0,
    }
    return Flow(**fields | others)


def test_a_line_has_what_is_known_of_a_flow():
    backend = FlowBackend(address="10.1.0.1", port=8080, local=False)
    made = flow(backend=backend, snat=False, seconds=0.0, retransmits=0)
    assert json.loads(flow_line(made)) == {
        "time": "2026-11-23T10:00:00.000000001Z",
        "event": "end",
        "verdict": "forwarded",
        "protocol": "TCP",
        "path": "tc",
        "frontend": {"address": "10.96.0.10", "port": 80},
        "backend": {"address": "10.1.0.1", "port": 8080, "local": False},
        "snat": False,
        "seconds": 0.0,
        "retransmits": 0,
        "seq": 0,
    }
    assert read_flow(flow_line(made)) == made


def test_lost_flows_have_a_line_too():
    assert flow_line(LostFlows(lost=3)) == b'{"lost":3}\n'
    assert read_flow('{"lost": 3}') == LostFlows(lost=3)


@pytest.mark.parametrize("name", ["x/\x1b[2J\n", "x/\x7f", "x/\x9b2J", "x/\u202e", "x/\U0001f600"])
def test_no_name_in_a_line_is_a_command_to_a_terminal(name: str):
    made = flow(client=FlowClient(address="10.1.0.9", pod=name))
    line = flow_line(made)
    assert line.decode("ascii")[:-1].isprintable()
    assert read_flow(line) == made


def test_half_a_surrogate_pair_makes_no_line_impossible():
    line = flow_line(flow(node="a\ud800"))
    assert json.loads(line)["node"] == "a\ud800"


def test_fields_of_a_later_version_are_passed_over():
    line = json.dumps({**to_builtins(flow()), "ttl": [1]})
    assert read_flow(line) == flow()


def test_why_is_the_reason_or_the_end():
    assert flow(reason="no_endpoint").why == "no endpoint"
    assert flow(ended="no_answer").why == "no answer"
    assert flow().why == ""


def test_measures_are_fields():
    assert set(MEASURES) <= set(Flow.__struct_fields__)


FULL = {
    **to_builtins(flow(node="node1")),
    **dict.fromkeys(("reason", "ended", "family", "source"), "word"),
    "client": {"address": "10.1.0.9", "port": 4, "pod": "a/b", "workload": "Job/b"},
    "frontend": {"address": "10.96.0.10", "port": 80, "type": "ClusterIP"},
    "service": {"namespace": "a", "name": "b", "port": "c"},
    "backend": {"address": "10.1.0.1", "port": 8, "node": "n", "zone": "z", "local": True},
    "policy": {"internal": "Local", "external": "Cluster", "affinity_timeout": 5},
    "snat": True,
    "hairpin": True,
    **{name: {"original": 1, "reply": 2} for name in ("bytes", "packets")},
    **dict.fromkeys(("seconds", "rtt_seconds"), 0.5),
    "retransmits": 1,
    "id": "18ead8183fe69d15-1f3",
}
PLACES = [
    *((name,) for name in FULL),
    *((name, inner) for name, each in FULL.items() if isinstance(each, dict) for inner in each),
]


def test_every_field_is_tried():
    assert set(FULL) == set(Flow.__struct_fields__)


def with_value(place: tuple[str, ...], value: object) -> str:
    made = json.loads(json.dumps(FULL))
    inner = made
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return json.dumps(made)


@pytest.mark.parametrize("value", [-1, 10**400, float("nan"), [], ["x"], {"": 1}, "x" * 600])
def test_no_field_may_be_anything(value: object):
    for place in PLACES:
        with pytest.raises(JsonError):
            read_flow(with_value(place, value))


@pytest.mark.parametrize(
    "line",
    [
        *("", "<html>", "[]", "{}", "null", '{"lost":', '{"lost":-1}', '{"lost":true}', "\udc80"),
        *("[" * 100_000, '{"x":' + "[" * 100_000, b"\xff", b"\x00", b"\xff\xfe{\x00"),
        pytest.param(with_value(("time",), "yesterday"), id="no time"),
        pytest.param(with_value(("time",), "0001-01-01T00:00:00.000000000Z"), id="no year"),
        pytest.param(with_value(("seconds",), "@").replace('"@"', "1e999"), id="no number"),
    ],
)
def test_a_line_that_is_no_flow(line: str | bytes):
    with pytest.raises(JsonError):
        read_flow(line)


def test_the_id_of_a_flow_has_its_time():
    named = flow_id(1_795_485_000_123_456_789, 499)
    assert named == "18ead8183fe69d15-1f3"
    assert time_of_id(named) == 1_795_485_000_123_456_789


@pytest.mark.parametrize(
    "text", ["", "1f3", "-1", "1-", "x-1", "1-g", "A-1", "1-1-1", "1" * 17 + "-1"]
)
def test_anything_else_is_no_id(text):
    with pytest.raises(ValueError, match="want the id of a flow"):
        time_of_id(text)


def test_the_times_of_a_line_are_read_without_the_rest():
    made = flow()
    assert read_flow_time(flow_line(made)) == FlowTime(time=made.time)
    lost = LostFlows(lost=1, since=made.time, time=made.time)
    assert read_flow_time(flow_line(lost)) == FlowTime(time=made.time, since=made.time)
    for line in ("", "[]", '{"time": 1}', '{"x":' + "[" * 100_000):
        with pytest.raises(JsonError):
            read_flow_time(line)


@given(st.text())
def test_any_name_is_read_as_it_was_written(name: str):
    made = flow(node=name[:253].encode(errors="replace").decode())
    assert read_flow(flow_line(made)) == made


@pytest.mark.parametrize(
    ("event", "ended", "verdict"),
    [
        ("start", "", "forwarded"),
        ("end", "closed", "forwarded"),
        ("end", "timed_out", "forwarded"),
        ("end", "replaced", "forwarded"),
        ("end", "retried", "forwarded"),
        pytest.param("end", "reset", "forwarded", id="as health checks end"),
        ("end", "no_answer", "failed"),
        ("end", "backend_refused", "failed"),
        ("refused", "", "refused"),
        ("dropped", "", "dropped"),
    ],
)
def test_the_event_and_the_end_report_the_verdict(event: str, ended: str, verdict: str):
    assert verdict_of(event, ended, "TCP") == verdict
    assert verdict in VERDICTS


def test_udp_without_an_answer_may_be_one_way_and_has_not_failed():
    verdicts = [verdict_of("end", "no_answer", protocol) for protocol in ("UDP", "SCTP")]
    assert verdicts == ["forwarded", "failed"]


def test_every_way_to_end_without_a_backend_is_one_of_the_kernels():
    assert {word(each) for each in FlowEnd} > set(FAILURES)


@pytest.mark.parametrize(
    ("host", "port", "kind"),
    [
        ("10.96.0.10", 80, "ClusterIP"),
        ("192.0.2.1", 80, "ExternalIP"),
        ("192.0.2.2", 80, "LoadBalancer"),
        ("192.168.0.1", 30080, "NodePort"),
        ("192.168.0.1", 80, None),
        ("10.96.0.10", 81, None),
    ],
)
def test_a_frontend_has_its_type_from_the_service(host: str, port: int, kind: str | None):
    assert frontend_type(PORT, address(host), port) == kind


@pytest.mark.parametrize(
    "node", [FollowedNode("a", runs=True), FollowedNode("b\x1b", runs=False, why="gone \u202e")]
)
def test_the_state_of_a_node_is_read_as_it_was_written(node):
    line = watch_line(node)
    assert line.endswith(b"}\n")
    assert read_watch_line(line) == node


def test_a_flow_is_read_as_it_was_written():
    for each in (flow(client=FlowClient(address="10.1.0.1")), LostFlows(lost=3)):
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
