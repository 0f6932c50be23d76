# SPDX-License-Identifier: Apache-2.0
import json
import os
import pty
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebpflb.agent.map_queries import MapQueries
from ebpflb.cli import agent_client, main
from ebpflb.cli import top as command
from ebpflb.cli.render import text_lines
from ebpflb.cli.tables import past as past_table
from ebpflb.cli.tables.top import (
    bar,
    ordered,
    percent,
    rate,
    top_lines,
)
from ebpflb.dataplane.layout.records import pack_name
from ebpflb.dataplane.load.pins import Generation
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.changes import Changes
from ebpflb.model.compact import from_compact
from ebpflb.model.compact.past_rates import PastRates, RecordedTime, decode_past
from ebpflb.model.compact.rates import PortRow, form_decoder, rates_decoder
from ebpflb.model.flow import BackendRate, ServiceRate
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.past_rates import PastRatesQueries
from ebpflb.observe.http.query_socket import QueryServer
from tests.builders import NODE, endpoint, endpoint_slice, port_name
from tests.memory_maps import memory_maps
from tests.unit.agent.flows import SERVICE, pod_of, record, refused
from tests.unit.cli.invoked import output_of
from tests.unit.dataplane.desired import backends, by_service, frontend, named

BEGIN, END = "2026-11-24T02:09:00.000000000Z", "2026-11-24T02:10:00.000000000Z"


def service(name="web", **fields) -> ServiceRate:
    numbers = "connections refused dropped failed retransmits original_bytes reply_bytes"
    plain = dict.fromkeys(numbers.split(), 0.0)
    shares = dict.fromkeys(("largest_share", "even_share", "cross_node_share"))
    rest = {"active": 0, "endpoints": 1, "troubles": (), "backends": (), **shares}
    return ServiceRate("default", name, "http", "TCP", **{**plain, **rest, **fields})


@pytest.fixture
def maps(monkeypatch):
    made = memory_maps()
    opened = Generation(1, 1, Path("/pins/1-1")), made
    monkeypatch.setattr(command, "open_pins", lambda _: opened)
    served = frontend(choice=backends("10.1.0.1", "10.1.0.2"), service=named("web", "http"))
    Sync(made, quiesce=lambda: None).resync(
        by_service(served, frontend("10.96.0.9", service=named("empty")))
    )
    return made


def run(*arguments, **environment):
    return output_of("top", "--interval", "0.1", *arguments, env=environment)


def test_one_table_where_there_is_no_terminal(maps):
    header, *rows = run("--sort", "name", "--all").splitlines()
    assert header.split() == [
        *("SERVICE", "CONN/S", "ACTIVE", "FAIL/S", "B/S", "TO/FROM", "SPREAD"),
        *("REMOTE", "BACKENDS", "TROUBLE"),
    ]
    assert [row.split() for row in rows] == [
        ["!", "default/empty", "0", "0", "0", "0/0", "-", "-", "0", "no", "endpoint"],
        ["default/web:http", "0", "0", "0", "0/0", "-", "-", "2", "-"],
    ]


def test_backends_stand_below_their_service(maps):
    rows = [row.split() for row in run("--backends", "--sort", "name", "--all").splitlines()]
    assert rows[3] == ["10.1.0.1:8080", "0", "0", "0", "0/0", "-", "remote"]


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100])
def test_a_narrow_table_keeps_what_matters_most(maps, columns):
    lines = run("--backends", "--all", COLUMNS=str(columns)).splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("! ") and "empty" in line for line in lines)
    assert ("CONN/S" in lines[0], "FAIL/S" in lines[0]) == (columns >= 40, columns >= 60)
    assert "TROUBLE" in lines[0]
    at = lines[0].index("TROUBLE")
    assert " ".join("".join(line[at:] for line in lines[1:3]).split()).startswith("no")


LONG = "shop/payments-api-7d4b9c6f5-hjklm answers nobody"


@pytest.mark.parametrize("width", [20, 33, 40, 60, 80, 120, 200])
def test_the_trouble_is_shown_in_full_however_narrow_the_terminal(width):
    found = [service(troubles=(LONG, "another"))]
    header, *lines = text_lines(top_lines(found, backends=False, every=False), width)
    assert max(map(len, lines)) <= width
    text = "".join(line[header.index("TROUBLE") :].strip() for line in lines)
    assert text.replace(" ", "") == f"{LONG} and 1 more".replace(" ", "")


def test_a_pod_is_shown_by_its_name_and_wide_with_its_address_too():
    pod = BackendRate(
        *("10.1.0.1", 80, True, False, False, 0.0, 3, 0.0, 0.0, 0.0, 1.0, "", "unwatched"),
        removed=True,
        pod="shop/web-\x1b[2J1",
    )
    given = [service(active=3, backends=(pod,))]
    narrow, wide = (
        list(text_lines(top_lines(given, backends=True, every=False, is_wide=is_wide), None))[2]
        for is_wide in (False, True)
    )
    assert (narrow.split()[0], wide.split()[:2]) == (
        "shop/web-\\x1b[2J1:80",
        ["shop/web-\\x1b[2J1", "10.1.0.1:80"],
    )
    assert narrow.endswith("local, removed")


@pytest.mark.parametrize("is_wide", [False, True])
def test_of_a_hidden_backend_only_what_stands_for_its_name_is_shown(is_wide):
    hidden = BackendRate(
        *("", 0, False, False, True, 1.0, 3, 0.0, 0.0, 0.0, 1.0, "", "unwatched"),
        pod="another namespace",
    )
    given = [service(active=3, backends=(hidden,))]
    lines = list(text_lines(top_lines(given, backends=True, every=False, is_wide=is_wide), None))
    assert lines[2].startswith("    another namespace  ")


@pytest.mark.parametrize("ejection", ["trial", "ejected"])
def test_a_service_with_an_endpoint_that_is_left_out_is_not_idle(ejection):
    pod = BackendRate(
        *("10.1.0.1", 80, True, False, True, 0.0, 0, 0.0, 0.0, 0.0, None, ""), ejection
    )
    assert not service(backends=(pod,)).is_idle
    assert service(backends=(replace(pod, ejection="watched"),)).is_idle


def test_what_is_idle_is_only_counted_unless_asked_for(maps):
    assert [line.split()[:2] for line in run().splitlines()[1:]] == [
        ["!", "default/empty"],
        ["1", "idle"],
    ]
    assert "idle" not in run("--all")
    assert [row.split()[0] for row in run("--service", "web").splitlines()[1:]] == [
        "default/web:http"
    ]
    assert len(json.loads(run("-o", "json"))["services"]) == 2


@pytest.mark.parametrize(
    "given",
    [
        ["--service", "web"],
        ["--service", "default/web"],
        ["-n", "shop", "--service", "default/web"],
    ],
)
def test_one_service_is_shown_alone(maps, given):
    (found,) = json.loads(run("-o", "json", *given))["services"]
    assert found["service"] == "web"


def test_a_service_that_is_not_there_is_one_line(maps):
    said = output_of("top", "--interval", "0.1", "--service", "wep", status=1)
    assert said == "Error: no Service default/wep is served (did you mean default/web?)\n"


def test_the_agent_names_pods_once_for_each_address(monkeypatch):
    now, asked = [0.0], []
    pods = {"shop/a": ["10.1.0.1"], "x/b": ["10.0.0.1"], "x/c": ["10.0.0.1"]}
    answer = {"pods": pods, "workloads": {}}

    def ask(_, *where):
        asked.append(where)
        return answer

    monkeypatch.setattr(agent_client, "ask", ask)
    names = agent_client.NamesOfPods("/agent.sock", lambda: now[0])
    assert names.of(["10.1.0.1", "10.0.0.1"]) == {"10.1.0.1": "shop/a", "10.0.0.1": ""}
    names.of(["10.1.0.1"])
    assert asked == [("names",)]
    names.of(["10.1.0.2"])
    now[0] = 60.0
    assert names.of(["10.1.0.2"])["10.1.0.1"] == "shop/a"
    assert len(asked) == 3


def test_without_an_agent_addresses_do(tmp_path):
    assert agent_client.NamesOfPods(str(tmp_path / "none")).of(["10.1.0.1"]) == {}


def test_json_is_one_sample(maps):
    shown = json.loads(run("-o", "json", "--sort", "trouble"))
    assert shown["seconds"] >= 0.1
    assert [each["service"] for each in shown["services"]] == ["empty", "web"]
    assert shown["services"][0]["troubles"] == ["no endpoint"]
    assert len(shown["services"][1]["backends"]) == 2


def test_a_wrong_interval_gives_one_line(maps):
    done = CliRunner().invoke(main, ["top", "--interval", "0"])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (0.25, "0.2"),
        (9.5, "9.5"),
        (12.3, "12"),
        (999, "999"),
        (1500, "1.5k"),
        (2e7, "20M"),
    ],
)
def test_rates_are_short(number, shown):
    assert rate(number) == shown


def test_shares_are_percent_and_bars():
    assert (percent(0.256), percent(None)) == ("26%", "-")
    assert (bar(0.5), bar(None)) == ("####", "")


def test_the_order_is_the_largest_first_then_by_name():
    busy, lossy = service("busy", connections=9.0), service("a", failed=3.0)
    even = service("b")
    assert ordered([even, lossy, busy], "connections") == [busy, lossy, even]
    assert ordered([even, busy, lossy], "failures") == [lossy, even, busy]
    assert ordered([busy, even, lossy], "name") == [lossy, even, busy]


def test_columns_are_left_out_by_rank():
    def titles(width):
        return next(text_lines(top_lines([], backends=False, every=False), width)).split()

    assert titles(60) == ["SERVICE", "CONN/S", "ACTIVE", "FAIL/S", "TROUBLE"]
    assert titles(20) == ["SERVICE", "TROUBLE"]


@pytest.fixture
def terminal(monkeypatch):
    """A terminal as standard input; gives the other end."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield ours
    os.close(ours)


def test_a_key_is_read_at_once(terminal):
    with command.keys() as press:
        os.write(terminal, b"q")
        assert press(5) == "q"
        assert press(0.01) == ""


def test_without_a_terminal_the_time_passes(monkeypatch, tmp_path):
    with (tmp_path / "file").open("w+") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with command.keys() as press:
            assert press(0.01) == ""


def test_one_namespace_is_shown_alone(maps):
    every = json.loads(run("-o", "json", "--once"))["services"]
    assert {each["namespace"] for each in every} == {"default"}
    assert json.loads(run("-o", "json", "-n", "shop"))["services"] == []
    assert "cannot be used together" in output_of("top", "-n", "shop", "-A", status=2)


def test_the_compact_answer_has_a_row_for_each_port(maps):
    found = rates_decoder.decode(from_compact(run("--compact")))
    named = {form_decoder.decode(row.form).name.service: row for row in found}
    assert named["web"] == PortRow(named["web"].form)
    assert named["empty"].troubles == ("no endpoint",)
    assert not rates_decoder.decode(from_compact(run("--compact", "-n", "shop")))


def test_jsonl_has_a_line_for_each_service_port(maps):
    lines = run("-o", "jsonl", "--sort", "name").splitlines()
    assert [json.loads(line)["service"] for line in lines] == ["empty", "web"]


def test_the_live_table_counts_again_until_q_is_pressed(maps, terminal, screen, monkeypatch):
    looks, known = [], command.Sample

    def counted(seconds, services):
        looks.append(seconds)
        # Both would be lost before the terminal passes single keys on.
        os.write(terminal, {2: b"i", 3: b"q"}.get(len(looks), b""))
        return known(seconds, services)

    monkeypatch.setattr(command, "Sample", counted)
    monkeypatch.setenv("TERM", "xterm")
    with screen(100) as shown:
        main(["top", "--interval", "0.1"], standalone_mode=False)
    assert (len(looks), looks[0]) == (3, 0)
    _, *pictures = shown.text.split("\x1b[?25l\x1b[H")[1].split("\x1b[H")
    states = [" ".join(each.split()[:2]) for each in shown.text.split("\x1b[H")[2:]]
    assert states == ["counting, 0.1", "1 Service", "2 Service", "2 Service"]
    assert "\x1b[1;31m! default/empty" in pictures[-1]


@pytest.fixture
def agent(http_server, tmp_path):
    """Its query socket; it has recorded connections of now."""
    changes = Changes(NODE)
    changes.set(endpoint_slice("web-1", endpoint("10.1.0.1", NODE, pod="default/web-a")))
    named_maps = memory_maps({})
    named_maps["lb_names"].update(SERVICE.to_bytes(4, "little"), pack_name(port_name()))
    log = FlowLog(10, changes, lambda: named_maps, pod_of(changes))
    log.accept([record(), record(), refused()])
    past = PastRatesQueries(log, None, 1).answer
    server = QueryServer(
        http_server,
        tmp_path / "agent.sock",
        MapQueries(lambda: None, changes, past, pod_of(changes)).routes,
    )
    server.start()
    yield str(tmp_path / "agent.sock")
    server.stop()


def test_the_past_is_what_the_agent_tells_of_it(agent):
    given = ("top", "--at", "0s", "--window", "1h", "--query-socket", agent)
    head, _, web, pod = output_of(*given, "--backends").splitlines()
    assert head.startswith("3 flow records from ")
    assert "; how many are missing is not known without kept ones (flow-history-bytes)" in head
    assert " ".join(web.split()) == "! default/web 0.0 - 0.0 0.1/1.1 - 0% - no endpoint"
    assert " ".join(pod.split()) == "default/web-a:8080 0.0 - 0 0.1/1.1 - local"
    found = json.loads(output_of(*given, "-o", "json"))
    assert found["records"]["count"] == 3
    assert found["services"][0]["connections"] == 2 / 3600
    assert decode_past(from_compact(output_of(*given, "--compact"))).records.count == 3
    assert json.loads(output_of(*given, "-o", "json", "--service", "shop/x"))["services"] == []


def test_without_an_agent_there_is_no_past(tmp_path):
    said = output_of("top", "--at", "10m", "--query-socket", str(tmp_path / "none"), status=1)
    assert said.startswith(f"Error: no agent answers at {tmp_path / 'none'}")


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"count": 1234, "oldest": BEGIN}, ["1,234 flow records from X to Y"]),
        ({"lost": 3, "oldest": BEGIN}, ["0 flow records from X to Y", "up to 3 are missing"]),
        ({"sample": 0, "oldest": BEGIN}, ["0 flow", "only what was refused or dropped is"]),
        ({"oldest": ""}, ["0 flow", "no records are kept"]),
        ({"oldest": "2026-11-24T02:09:30.000000000Z"}, ["0 flow", "records begin at Z"]),
    ],
)
def test_the_head_says_what_the_numbers_lack(known, told, monkeypatch, capsys):
    times = {BEGIN: "X.000", END: "Y.000"}
    monkeypatch.setattr(past_table, "local_time", lambda text: times.get(text, "Z.000"))
    past = PastRates(RecordedTime(begin=BEGIN, end=END, **known), [])
    given = {"sort": "name", "backends": False}
    past_table.show_past(past, "", given, "table")
    head, _ = capsys.readouterr().out.splitlines()
    parts = head.split("; ")
    assert len(parts) == len(told)
    assert all(part.startswith(each) for part, each in zip(parts, told, strict=True))
