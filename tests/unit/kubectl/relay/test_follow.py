# SPDX-License-Identifier: Apache-2.0
"""flows --follow by the relay: what it prints, and what becomes of it when the relay breaks off."""

import json
import threading
import time
from types import SimpleNamespace

import pytest

from ebpflb.cli import INTERRUPTED
from ebpflb.cli.flows import show
from ebpflb.kubectl import cluster as of_the_cluster
from ebpflb.kubectl import flows as command
from ebpflb.kubectl.relay_streams import RelayStreams
from ebpflb.kubectl.streams import Streams, StreamState
from ebpflb.model.flow import FollowedNode
from ebpflb.words.observe import API_VERSION, FLOWS, GROUP
from tests.unit.kubectl.answers import flow, lines
from tests.unit.kubectl.api_server import DAEMON_SETS
from tests.unit.kubectl.relay.fake_relay import FORBIDDEN

CTRL_C = FollowedNode("Ctrl-C", True)
A, B = FollowedNode("a", True), FollowedNode("b", True)
DOWN = FollowedNode("b", False, "cannot be followed: refused")
NO_AGENT = FollowedNode("c", False, "no agent runs on this node")


class Interrupted(RelayStreams):
    """Ctrl-C comes when the relay tells of the node Ctrl-C. seen: what came before."""

    seen: list[object]

    def __init__(self, follow):
        super().__init__(follow, pause_seconds=0.02, look_seconds=0.05)

    def __iter__(self):
        for node, what in super().__iter__():
            if node == CTRL_C.node:
                raise KeyboardInterrupt
            self.seen.append((node, what))
            yield node, what


@pytest.fixture(autouse=True)
def seen(monkeypatch):
    found: list[object] = []
    monkeypatch.setattr(Interrupted, "seen", found, raising=False)
    monkeypatch.setattr(command, "RelayStreams", Interrupted)
    return found


@pytest.fixture
def watch(relay):
    return relay.watched()


def follow(three, *words, status=INTERRUPTED):
    return three.run("flows", "--follow", "-o", "jsonl", *words, status=status)


def seqs(done):
    return [(each["node"], each["seq"]) for each in map(json.loads, done.stdout.splitlines())]


def eventually(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def after(condition, act):
    """Act in another thread, once it is so."""

    def wait():
        eventually(condition)
        act()

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.parametrize("output", ["jsonl", "table", "wide"])
def test_both_ways_print_the_same(three, watch, monkeypatch, output):
    told = [flow(1), {"lost": 3}, flow(4, verdict="refused", event="refused")]
    three.say("a", "flows", lines(*told))
    for name in "bc":
        three.fail(name, "flows", "Error: out of memory")

    class Ends(Streams):
        def __iter__(self):
            for node, what in super().__iter__():
                if node == "a" and what == StreamState(False, "the agent has stopped"):
                    raise KeyboardInterrupt
                if node == "a":
                    yield node, what

    monkeypatch.setattr(command, "Streams", Ends)
    given = ["flows", "--follow", "-o", output]
    watch.tell(A, *({**each, "node": "a"} for each in told), CTRL_C)
    found = three.run(*given, status=INTERRUPTED)
    assert not three.objects.executed
    assert len(found.stdout.splitlines()) in (3, 4)
    expected = three.run(*given, "--via", "exec", status=INTERRUPTED)
    assert found.stdout == expected.stdout


def test_who_may_follow_the_relay_needs_no_other_right(three, relay):
    for path in ("/api/v1/pods", "/api/v1/nodes", DAEMON_SETS):
        three.objects.refused[path] = 403, "forbidden"
    for via in ("auto", "relay"):
        relay.watched().tell(flow(1, node="a"), CTRL_C)
        assert seqs(follow(three, "--via", via)) == [("a", 1)]
    assert relay.asked() == [("namespaces/default/flows", {"watch": "true"})] * 2
    assert len(three.objects.requested) == 2


@pytest.mark.parametrize(
    ("words", "place", "parameters"),
    [
        (["-A"], "", {}),
        (["-n", "shop", "--node", "a", "--node", "b"], "namespaces/shop/", {"node": "a,b"}),
        (
            ["--service", "web", "--verdict", "refused", "--event", "end", "--from", "::1"],
            "namespaces/default/",
            {"service": "default/web", "verdict": "refused", "event": "end", "from": "::1"},
        ),
        (["--to", "web-0"], "namespaces/default/", {"to": "default/web-0"}),
    ],
)
def test_it_is_asked_what_the_command_line_says(three, relay, words, place, parameters):
    relay.watched(place).tell(CTRL_C)
    follow(three, *words)
    assert relay.asked() == [(f"{place}flows", {**parameters, "watch": "true"})]


@pytest.mark.parametrize(
    ("words", "parameters"),
    [(["--last", "9"], {"limit": "9"}), (["--since", "5m"], {"since": "5m"})],
)
def test_earlier_flows_come_first_and_none_twice(three, relay, watch, words, parameters):
    relay.say(FLOWS, [flow(1, node="a"), flow(2, node="a"), flow(2, node="b"), {"lost": 2}])
    again = flow(2, node="a", time="2026-11-24T10:00:00.000000000Z")
    watch.tell(A, again, flow(2, node="a"), flow(1, node="b"), flow(2, node="b"), CTRL_C)
    done = follow(three, *words)
    shown = [json.loads(each) for each in done.stdout.splitlines()]
    assert [(each.get("node"), each.get("seq")) for each in shown] == [
        *(("a", 1), ("a", 2), ("b", 2), (None, None)),
        *(("a", 2), ("b", 1)),
    ]
    assert shown[4]["time"] == again["time"]
    path = "namespaces/default/flows"
    assert relay.asked() == [(path, {"watch": "true"}), (path, parameters)]


def test_nodes_without_earlier_flows_are_named(three, relay, watch):
    relay.failures = {"out of memory": ["b"], "no agent runs on this node": ["c"]}
    relay.say(FLOWS, [flow(1, node="a")])
    watch.tell(CTRL_C)
    done = follow(three, "--last", "9")
    assert done.stderr.startswith("b: out of memory\n")
    assert "c: " not in done.stderr


def test_nodes_are_named_when_they_break_off_and_when_they_are_back(three, watch):
    watch.tell(A, DOWN, DOWN, NO_AGENT, flow(1, node="a"), b"\n", b"\n", B, DOWN, CTRL_C)
    done = follow(three)
    assert done.stderr.splitlines()[:3] == [
        "b: not following for now: cannot be followed: refused",
        "b: following again",
        "b: not following for now: cannot be followed: refused",
    ]
    assert "c: " not in done.stderr


@pytest.mark.parametrize(
    ("stop", "why"),
    [("end", "the relay has stopped"), ("break_off", "the connection to http://127.0.0.1")],
)
def test_a_relay_that_breaks_off_is_asked_again(three, watch, stop, why):
    watch.tell(A, flow(1, node="a"))
    getattr(watch, stop)()
    watch.tell(A, DOWN, flow(2, node="a"), CTRL_C)
    done = follow(three)
    assert seqs(done) == [("a", 1), ("a", 2)]
    first, *others = done.stderr.splitlines()
    assert first.startswith(f"the relay: not following for now: {why}")
    assert others[:2] == [
        "the relay: following again",
        "b: not following for now: cannot be followed: refused",
    ]
    assert watch.begun == 2
    assert not three.objects.executed


@pytest.mark.parametrize("status", [404, 403, 503])
def test_a_relay_that_goes_may_be_back(three, relay, watch, seen, status):
    watch.tell(A, flow(1, node="a"))

    def go():
        relay.refuse(FLOWS, status, "gone")
        watch.end()
        after(lambda: sum("Relay" not in str(each) for each in seen) >= 6, be_back)

    def be_back():
        relay.be_back(FLOWS)
        watch.tell(A, flow(2, node="a"), CTRL_C)

    after(lambda: len(seen) >= 3, go)
    done = follow(three)
    assert seqs(done) == [("a", 1), ("a", 2)]
    assert done.stderr.count("the relay: not following for now") == 1
    assert done.stderr.count("the relay: following again") == 1
    assert not three.objects.executed


def test_it_ends_when_the_relay_stays_away(three, relay, watch, seen, monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(command, "time", clock)
    watch.tell(A, B)

    def go():
        relay.refuse(FLOWS, 503, "gone")
        watch.end()
        after(lambda: len(seen) >= 6, lambda: setattr(clock, "monotonic", lambda: 301.0))

    after(lambda: len(seen) >= 3, go)
    done = follow(three, status=1)
    assert done.stderr.splitlines() == [
        "the relay: not following for now: the relay has stopped",
        "Error: cannot follow any agent",
    ]


def test_if_it_breaks_off_before_it_tells_anything_it_ends_at_once(three, watch):
    watch.break_off()
    first, last = follow(three, status=1).stderr.splitlines()
    assert first.startswith("the relay: not following for now: the connection to http://127.0.0.1")
    assert last == "Error: cannot follow any agent"


def test_it_ends_when_all_agents_stay_away(three, watch, seen, monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(command, "time", clock)
    watch.tell(FollowedNode("a", False, "down"), DOWN, NO_AGENT)

    def wait():
        clock.monotonic = lambda: 301.0
        watch.tell(b"\n")

    after(lambda: len(seen) >= 4, wait)
    done = follow(three, status=1)
    assert done.stderr.splitlines() == [
        "a: not following for now: down",
        "b: not following for now: cannot be followed: refused",
        "Error: cannot follow any agent",
    ]


def test_who_is_back_has_time_to_tell_of_all_nodes(three, relay, watch, seen, monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(command, "time", clock)
    watch.tell(A)
    watch.end()

    def be_back():
        clock.monotonic = lambda: 299.0
        watch.tell(b"\n")
        after(lambda: len(seen) >= 4, tell)

    def tell():
        clock.monotonic = lambda: 302.0
        watch.tell(DOWN, A, CTRL_C)

    after(lambda: watch.begun == 2, be_back)
    assert "cannot follow" not in follow(three).stderr


@pytest.mark.parametrize(
    "line",
    [
        *(b"<html>\n", b"[]\n", b"null\n", b"\xff\n", b" \n", b"[" * 50_000 + b"\n"),
        *(b'{"type": "ADDED", "object": {}}\n', b'{"type": "ADDED", "object": 7}\n'),
        *(b'{"type": "NODE", "object": {}}\n', b'{"type": "GONE", "object": {}}\n'),
        b'{"type": "ADDED", "object": {"lost": 7, "node": 7}}\n',
        json.dumps(flow(9)).encode() + b"\n",
    ],
)
def test_odd_lines_are_noted_and_the_others_are_shown(three, watch, monkeypatch, line):
    noted = []
    monkeypatch.setattr(of_the_cluster.Cluster, "note", lambda _, *what: noted.append(what))
    watch.tell(A, line, flow(1, node="a"), CTRL_C)
    done = follow(three)
    assert seqs(done) == [("a", 1)]
    if line.strip():
        ((node, text),) = noted
        assert node == "the relay"
        assert text.startswith("a flow that this version cannot read (")


def test_what_the_relay_lost_is_told(three, watch):
    watch.tell({"lost": 7}, {"lost": 2, "node": "a"}, CTRL_C)
    shown = map(json.loads, follow(three).stdout.splitlines())
    assert list(shown) == [{"lost": 7, "node": "the relay"}, {"lost": 2, "node": "a"}]


def test_a_line_without_an_end_breaks_off(three, watch):
    watch.tell(A, *[b"x" * (40 << 10)] * 2)
    after(lambda: watch.begun == 2, lambda: watch.tell(A, flow(1, node="a"), CTRL_C))
    done = follow(three)
    assert "sends a line of more than 64 KiB" in done.stderr
    assert seqs(done) == [("a", 1)]


def test_names_are_neither_escapes_nor_lines_of_their_own(three, watch):
    evil = "\x1b[2J\nb: fine"
    watch.tell(FollowedNode(evil, False, evil), flow(1, node=evil), CTRL_C)
    done = three.run("flows", "--follow", status=INTERRUPTED)
    assert "\x1b" not in done.output
    assert "b: fine" not in done.output.splitlines()


def test_where_there_is_none_the_nodes_are_followed_and_nothing_is_said(three):
    for name in "abc":
        three.fail(name, "flows", "Error: no")
    done = follow(three, status=1)
    assert "relay" not in done.stderr
    assert len(three.objects.executed) == 3
    done = follow(three, "--via", "relay", status=1)
    text = f"no relay in this cluster: its API server knows no {API_VERSION}"
    assert done.stderr == f"Error: {text}\n"
    assert len(three.objects.executed) == 3


@pytest.mark.parametrize(
    ("status", "message", "why"),
    [
        (403, FORBIDDEN, f"RBAC forbids it: {FORBIDDEN}"),
        (503, "wait", "no pod of the relay is ready: wait"),
    ],
)
@pytest.mark.parametrize("words", [[], ["--last", "3"]])
def test_if_it_does_not_answer_the_nodes_are_followed(three, relay, words, status, message, why):
    for name in "abc":
        three.fail(name, "flows", "Error: no")
    relay.refuse(FLOWS, status, message)
    done = follow(three, *words, status=1)
    first, *others = done.stderr.splitlines()
    assert first == f"not through the relay ({why}): asking the nodes by pods/exec"
    assert len(others) == 4
    assert follow(three, *words, "--via", "relay", status=1).output == f"Error: {why}\n"


def test_if_it_does_not_list_either_the_nodes_are_followed(three, relay, watch):
    for name in "abc":
        three.fail(name, "flows", "Error: no")
    three.objects.texts[f"/apis/{API_VERSION}/namespaces/default/flows"] = "<html>"
    done = follow(three, "--last", "3", status=1)
    assert done.stderr.startswith("not through the relay (the relay answers what this version")
    assert all("--last=3" in argv for argv in three.objects.executed[:3])


def test_an_error_that_the_nodes_would_not_mend_is_one_line(three, relay):
    relay.refuse(FLOWS, 400, "node x: not found")
    done = follow(three, "--node", "x", status=1)
    assert done.output == "Error: node x: not found\n"
    assert not three.objects.executed


def test_people_at_a_terminal_are_told_the_way(three, relay, monkeypatch):
    screen = SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(of_the_cluster, "sys", screen)
    relay.watched().tell(CTRL_C)
    assert follow(three).stderr.startswith("through the relay\n")
    relay.watched().tell(CTRL_C)
    assert "through" not in follow(three, "--via", "relay").stderr


def test_after_ctrl_c_the_relay_is_left_with_the_next_line(three, watch):
    watch.tell(A, CTRL_C)
    follow(three)
    watch.tell(b"\n")
    eventually(lambda: not watch.connected)
    names = [each.name for each in threading.enumerate() if not each.daemon]
    assert "ebpflb-stream" not in names


def test_a_slow_reader_misses_nothing(three, watch, monkeypatch):
    monkeypatch.setattr("ebpflb.kubectl.streams._WAITING_LINES", 10)
    watch.tell(*(flow(0, node="a") | {"seq": number} for number in range(300)), CTRL_C)

    def slow(flows, *given, **more):
        def slowly():
            for number, each in enumerate(flows):
                if number % 50 == 0:
                    time.sleep(0.05)
                yield each

        show(slowly(), *given, **more)

    monkeypatch.setattr(command, "show", slow)
    assert [seq for _, seq in seqs(follow(three))] == list(range(300))


def test_of_users_without_rights_the_api_server_hides_that_there_is_none(three, relay):
    relay.refuse(FLOWS, 403, FORBIDDEN)
    del three.objects.texts[f"/apis/{GROUP}"]
    done = follow(three, "--via", "relay", status=1)
    assert "no relay in this cluster" in done.stderr
