# SPDX-License-Identifier: Apache-2.0
"""The command with a real server over a history as an agent has it."""

import json
import re
import socket
import threading
from functools import partial

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from ebpflb.cli import agent_client, main
from ebpflb.cli.flows import flow_table
from ebpflb.dataplane.layout.enums import FlowEnd, FlowEvent, FlowPath
from ebpflb.dataplane.layout.records import pack_name
from ebpflb.kubectl import program as kubectl
from ebpflb.kubectl.flows import flows as plugin
from ebpflb.model.changes import Changes
from ebpflb.model.flow import LostFlows
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.queries import query_routes
from ebpflb.observe.http.query_socket import QueryServer
from tests.builders import NODE, OTHER_NODE, endpoint, endpoint_slice, port_name, service
from tests.memory_maps import memory_maps
from tests.unit.agent.flows import SERVICE, pod_of, record, refused
from tests.unit.cli.invoked import output_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.sock"


@pytest.fixture
def changes():
    known = Changes(NODE)
    known.set(service())
    web = endpoint("10.1.0.1", OTHER_NODE, pod="default/web-a")
    known.set(endpoint_slice("web-1", web, endpoint("10.1.0.9", pod="default/curl")))
    return known


@pytest.fixture
def log(changes):
    maps = memory_maps({})
    maps["lb_names"].update(SERVICE.to_bytes(4, "little"), pack_name(port_name()))
    return FlowLog(100, changes, lambda: maps, pod_of(changes))


@pytest.fixture
def server(http_server, path, log, changes):
    """That of an agent with these flows."""
    made = QueryServer(http_server, path, query_routes(changes, log))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def run(path):
    return partial(output_of, "flows", "--query-socket", str(path))


@pytest.fixture
def some(log, server):
    log.accept([record(), refused(client="10.1.0.8", frontend="fd00::5")])


def test_a_table_shows_a_line_for_each_flow(run, some):
    header, first, second = run().splitlines()
    assert re.split(r"\s{2,}", header) == [
        *("TIME", "VERDICT", "CLIENT", "SERVICE", "BACKEND"),
        *("PATH", "BYTES", "TOOK", "RTT", "WHY"),
    ]
    assert re.split(r"\s{2,}", first)[1:] == [
        *("forwarded", "default/curl:40000", "default/web (10.96.0.10:80/TCP)"),
        *("default/web-a:8080", "socket", "100 B/2.0 KiB", "1.5s", "250us"),
        "closed, on node-b",
    ]
    assert re.split(r"\s{2,}", second)[1:] == [
        *("refused", "10.1.0.8:40000", "default/web ([fd00::5]:80/TCP)", "socket", "no endpoint"),
    ]
    assert re.fullmatch(r"[A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d\.\d{3}", first.split("  ")[0])


@pytest.mark.parametrize("end", [FlowEnd.LB_END_NO_ANSWER, FlowEnd.LB_END_BACKEND_REFUSED])
def test_what_fails_at_its_backend_is_called_failed_and_selected_so(run, log, server, end):
    log.accept([record(), record(end=end), refused()])
    _, _, failed, _ = run().splitlines()
    assert re.split(r"\s{2,}", failed)[1] == "failed"
    (found,) = json.loads(run("-o", "json", "--verdict", "failed"))
    assert (found["seq"], found["verdict"], found["event"]) == (1, "failed", "end")
    assert len(json.loads(run("-o", "json", "--verdict", "failed,refused"))) == 2
    assert len(json.loads(run("-o", "json", "--verdict", "forwarded"))) == 1


@pytest.mark.parametrize(
    ("verdict", "colour"),
    [("forwarded", 32), ("failed", 31), ("refused", 33), ("dropped", 31)],
)
def test_each_verdict_has_its_colour(log, verdict, colour):
    flow = replace(flow_of(log, record()), verdict=verdict)
    assert f"\x1b[{colour}m{verdict}" in lines_of(flow, colour=True)[1]


def test_an_unknown_verdict_lists_the_known_ones(run, some):
    said = run("--verdict", "fail", status=2)
    assert "unknown value 'fail' (did you mean failed?)" in said
    for command in (main.commands["flows"], plugin):
        shown = command.get_help(click.Context(command))
        assert "forwarded, failed, refused, dropped" in " ".join(shown.split())


def test_a_name_does_not_reach_the_terminal_as_a_command(run, log, server, changes):
    changes.set(endpoint_slice("web-2", endpoint("10.1.0.8", pod="default/\x1b[2Jx\n")))
    log.accept([refused(client="10.1.0.8")])
    _, row = run().splitlines()
    assert "default/\\x1b[2Jx\\n:40000" in row
    assert "\\x1b[2Jx" in run("--from", "default/x", status=1)


def test_columns_are_as_wide_as_the_widest_flow_of_all(run, log, server):
    log.accept([record(), record(frontend="2001:db8:1111:2222:3333:4444:5555:6666")])
    lines = run().splitlines()
    assert {line.index("  socket  ") for line in lines[1:]} == {lines[0].index("  PATH")}


def test_a_client_without_a_port_is_shown_without_one(run, log, server):
    log.accept([record(client_port=0), refused(client="10.1.0.8", client_port=0)])
    clients = [re.split(r"\s{2,}", line)[2] for line in run().splitlines()[1:]]
    assert clients == ["default/curl", "10.1.0.8"]
    found = [each["client"] for each in json.loads(run("-o", "json"))]
    assert not any("port" in each for each in found)


def test_without_limits_the_last_20_are_shown(run, log, server):
    log.accept([record() for _ in range(30)])
    numbers = [json.loads(line)["seq"] for line in run("-o", "jsonl").splitlines()]
    assert numbers == list(range(10, 30))
    assert len(json.loads(run("-o", "json", "--since", "1h"))) == 30
    assert len(json.loads(run("-o", "json", "--last", "25"))) == 25
    assert json.loads(run("-o", "json", "--last", "0")) == []


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--service", "web"], [0, 1]),
        (["--service", "default/web", "--verdict", "refused"], [1]),
        (["--from", "curl"], [0]),
        (["--from", "10.1.0.8"], [1]),
        (["--to", "fd00::5"], [1]),
        (["--to", "default/web-a"], [0]),
        (["--event", "start"], []),
    ],
)
def test_filters(run, some, arguments, found):
    assert [each["seq"] for each in json.loads(run("-o", "json", *arguments))] == found


def test_following_shows_what_comes_and_ends_with_the_agent(run, log, server, monkeypatch):
    monkeypatch.setattr("ebpflb.observe.flows.queries._LOOK_SECONDS", 0.05)
    wait_for_ever, patience = agent_client._Connection.wait_for_ever, []

    def noted(connection):
        wait_for_ever(connection)
        patience.append(connection._socket.gettimeout())

    monkeypatch.setattr(agent_client._Connection, "wait_for_ever", noted)
    log.accept([record()])
    since = log.history.since
    stopping = threading.Thread(target=server.stop)
    events = [stopping.start, lambda: log.accept([refused()])]

    def since_the_next_event(end, *seconds):
        if seconds and events:
            events.pop()()
        return since(end, *seconds)

    monkeypatch.setattr(log.history, "since", since_the_next_event)
    first, error = run("-f", "-o", "jsonl", status=1).splitlines()
    stopping.join()
    assert json.loads(first)["seq"] == 1
    assert error.endswith("agent.sock: the agent has stopped")
    assert patience == [None]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--service", "default/wep"], "unknown Service 'default/wep' (did you mean default/web?)"),
        (["--from", "cur"], "unknown pod 'default/cur' (did you mean default/curl?)"),
    ],
)
def test_a_name_that_nobody_has_is_one_line(run, server, arguments, text):
    (line,) = run(*arguments, status=1).splitlines()
    assert line.startswith(f"Error: {text}")


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--verdict", "denied", "unknown value 'denied'"),
        ("--verdict", ",", "unknown value ''"),
        ("--event", "end,ends", "unknown value 'ends' (did you mean end?)"),
        ("--id", "7", "want the id of a flow, as in the last column of `ebpflb flows -o wide`"),
        ("--since", "soon", "want a time, as in 03:10"),
        ("--from", "10.0.0.300", "'10.0.0.300': want an address or"),
        ("--to", "fd00::x", "'fd00::x': want an address or"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(option, value, text):
    """Nobody is asked: no agent runs."""
    for program in (main, kubectl):
        done = CliRunner().invoke(program, ["flows", option, value])
        assert done.exit_code == 2
        assert done.output.startswith(f"Error: Invalid value for '{option}': {text}")


def test_an_id_is_shown_in_wide_tables_and_found_again(run, some):
    header, first, _ = run("-o", "wide").splitlines()
    assert header.split()[-1] == "ID"
    (found,) = json.loads(run("--id", first.split()[-1], "-o", "json"))
    assert (found["seq"], found["id"]) == (0, first.split()[-1])
    assert found["id"] not in run()
    assert run("--id", "1-1") == "no record of the last 24 hours here has this id\n"
    assert "--id does not work with --follow" in run("--id", "1-1", "--follow", status=2)


def test_an_array_has_an_end(run):
    assert "use -o jsonl" in run("--follow", "-o", "json", status=2)


def test_without_an_agent_it_says_what_to_do(run, path):
    wanted = f"Error: no agent answers at {path}: start `ebpflb run`, or give its --query-socket\n"
    assert run(status=1) == wanted
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert run(status=1) == wanted


def test_what_answers_and_is_no_agent_is_one_line(run, path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()

        def talk():
            with other.accept()[0] as client:
                client.recv(1000)
                client.sendall(b"SSH-2.0-OpenSSH\r\n")

        threading.Thread(target=talk, daemon=True).start()
        assert "what answers is not an agent" in run(status=1)


def test_a_path_that_is_too_long_is_one_line(path):
    done = CliRunner().invoke(main, ["flows", "--query-socket", "/" + "a" * 200])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "the path has 201 bytes" in done.output
    off = CliRunner().invoke(main, ["flows", "--query-socket", ""])
    assert off.output.startswith("Error: no query socket: set")


def flow_of(log, raw):
    log.accept([raw])
    return log.flow(0, log.history.since(0).records[-1])


def lines_of(*flows, width=None, colour=False, grows=True):
    return list(flow_table(flows, colour=colour).lines(width, grows=grows))


def test_a_narrow_terminal_gets_several_short_lines(log):
    flow = flow_of(log, record(path=FlowPath.LB_PATH_TC, rtt=0, flow_flags=1))
    lines = lines_of(flow, width=40)
    assert lines[0].endswith(" forwarded")
    assert lines[1:] == [
        "  default/curl:40000",
        "  -> default/web (10.96.0.10:80/TCP)",
        "  -> default/web-a:8080",
        "  tc 100 B/2.0 KiB 1.5s closed,",
        "    masqueraded, on node-b",
    ]
    long = flow_of(log, record(frontend="2001:db8:1111:2222:3333:4444:5555:6666"))
    assert max(map(len, lines_of(long, width=40))) <= 40


def test_a_table_that_does_not_fit_becomes_short_lines(log):
    flow = flow_of(log, record(frontend="2001:db8:1111:2222:3333:4444:5555:6666"))
    for width, count in ((150, 5), (250, 2)):
        rows = lines_of(flow, width=width, grows=False)
        assert (len(rows), max(map(len, rows)) <= width) == (count, True)


def test_verdicts_have_colours_where_they_are_wanted(log):
    flow = flow_of(log, record(FlowEvent.LB_FLOW_DROPPED, reason=11))
    for width in (40, None):
        coloured = "\n".join(lines_of(flow, width=width, colour=True))
        assert "\x1b[31mdropped" in coloured
        plain = "\n".join(lines_of(flow, width=width))
        assert "\x1b" not in plain
        assert "source range" in plain


def test_flows_that_are_missing_are_reported():
    lost = "(12 flows are missing: they arrived faster than they could be shown)"
    assert lines_of(LostFlows(lost=12))[1:] == [lost]
    assert "".join(lines_of(LostFlows(lost=12), width=70)) == lost
    assert max(map(len, lines_of(LostFlows(lost=12), width=40))) <= 40


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *(
            (0, "<10ms"),
            (0.0000005, "0.5us"),
            (0.00025, "250us"),
            (0.0009999, "1000us"),
            (0.0123, "12.3ms"),
        ),
        *((1.5, "1.5s"), (59.94, "59.9s"), (61, "1m1s"), (7260, "2h1m")),
    ],
)
def test_times_are_short(log, seconds, text):
    flow = replace(flow_of(log, record()), seconds=seconds)
    assert f"  {text}  " in lines_of(flow)[1]


def test_a_day_that_no_month_has_is_shown_as_it_is(log):
    flow = replace(flow_of(log, record()), time="2026-02-30T00:00:00.000000000Z")
    assert lines_of(flow)[1].startswith(flow.time)


def test_lines_are_those_of_the_agent(run, log, some):
    lines = [log.line(at, each).decode() for at, each in enumerate(log.history.since(0).records)]
    assert run("-o", "jsonl") == "".join(lines)
