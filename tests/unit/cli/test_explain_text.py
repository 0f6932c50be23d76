# SPDX-License-Identifier: Apache-2.0
import time

import pytest

from ebpflb.cli.explain_text import Outcome, exit_status, outcome_of, rendered
from tests.unit.cli.explained import DEAD, FRONTEND, answered, backend

FLOW = {
    "client_port": 4000,
    "backend": "10.1.0.5",
    "backend_port": 8080,
    "state": "established",
    "age": 3.2,
    "silent": 1.0,
}


FINE, LOST = backend(), backend(reason="no_route")
DYING, UNUSED = backend(trouble=DEAD), backend(trouble=DEAD, chance=0.0)


def shown(capsys, monkeypatch, found):
    monkeypatch.setenv("COLUMNS", "200")
    print(rendered(found))
    return capsys.readouterr().out.splitlines()


def test_everything_that_decides_has_a_line(capsys, monkeypatch):
    lines = shown(capsys, monkeypatch, answered(backends=[backend()]))
    assert lines == [
        "works: translated at the socket hook, to the only possible backend",
        "",
        "FROM       [fd00::5]:40, a pod of this node, via veth1, without tc cover",
        "TO         192.0.2.9:80/TCP, LoadBalancer of default/web:http",
        "PATH       socket hook: translated",
        "POLICY     external traffic policy Local, which does not apply to clients of this node; "
        "the endpoints for this node",
        "AFFINITY   by client, 60 s: stays with 10.1.0.5:8080, last used 2 s ago",
        "SCHEDULER  round-robin: a reason",
        "CLIENTS    only 192.0.2.0/24 (source ranges)",
        "SOURCE     masqueraded (--masquerade-all)",
        "",
        "ENDPOINT       CHANCE  WHY",
        "10.1.0.5:8080    100%  on this node",
        "",
        "Not compared with the model: no agent",
    ]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({}, "not for this client, which connects at the socket"),
        (
            {"place": "tc ingress of veth1"},
            "if an endpoint refuses or does not answer, the next SYN goes to another one",
        ),
        (
            {"place": "tc ingress of eth0", "backends": [backend(tunnel="10.0.0.2")]},
            "if an endpoint refuses or does not answer, the next SYN goes to another one; "
            "not through a tunnel",
        ),
    ],
)
def test_who_is_retried(capsys, monkeypatch, where, said):
    found = answered(**{"backends": [backend()], "frontend": FRONTEND | {"retry": True}, **where})
    assert f"RETRY      {said}" in shown(capsys, monkeypatch, found)


@pytest.mark.parametrize(
    ("has", "said"), [("", ""), ("the client has 3 open", ": the client has 3 open")]
)
def test_limits_are_told_with_what_the_client_has(capsys, monkeypatch, has, said):
    limited = {"frontend": FRONTEND | {"limits": "5 open per endpoint"}, "limits": has}
    full = backend("10.1.0.6", chance=0.0, full=True)
    lines = shown(capsys, monkeypatch, answered(backends=[backend(), full], **limited))
    assert f"LIMITS     5 open per endpoint{said}" in lines
    assert (
        "10.1.0.6:8080      0%  on this node; full: it has as many connections as it may" in lines
    )


def test_of_a_moment_of_the_past_it_says_which_and_since_when(capsys, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    then = {"at": "2026-11-24T03:12:30.000000000Z", "since": "2026-11-24T03:10:58.123456789Z"}
    lines = shown(capsys, monkeypatch, answered(backends=[backend()]) | then)
    assert lines[0] == "works: translated then, to the only possible backend"
    assert lines[2] == "AT         Nov 24 03:12:30; unchanged since Nov 24 03:10"
    assert lines[-1] == "From what was kept of that time; the maps of then are gone"
    refused = answered("refused", why="no usable endpoint") | then | {"since": ""}
    lines = shown(capsys, monkeypatch, refused)
    assert (lines[0], lines[2]) == (
        "fails: refused then: no usable endpoint",
        "AT         Nov 24 03:12:30",
    )


@pytest.mark.parametrize(
    ("verdict", "frontend", "backends", "outcome"),
    [
        ("translated", FRONTEND, [FINE, UNUSED], Outcome.WORKS),
        ("translated", None, [], Outcome.WORKS),
        ("translated", FRONTEND, [FINE, DYING], Outcome.PARTLY),
        ("translated", FRONTEND, [FINE, LOST], Outcome.PARTLY),
        ("translated", FRONTEND, [DYING, LOST, UNUSED], Outcome.LIKELY_FAILS),
        ("refused", FRONTEND, [], Outcome.FAILS),
        ("dropped", None, [], Outcome.FAILS),
        ("passes", FRONTEND, [], Outcome.FAILS),
        ("passes", None, [], Outcome.PASSES),
    ],
)
def test_what_an_answer_comes_to(verdict, frontend, backends, outcome):
    assert outcome_of(answered(verdict, backends, frontend=frontend)) is outcome


def test_it_likely_fails_if_every_backend_is_in_trouble(capsys, monkeypatch):
    dead, unused = backend(chance=0.5, trouble=DEAD), backend("10.1.0.7", chance=0.0)
    found = answered(backends=[dead, {**dead, "address": "10.1.0.6"}, unused])
    lines = shown(capsys, monkeypatch, found)
    assert lines[0] == "likely fails: translated at the socket hook, to one of 2 backends"
    assert f"10.1.0.5:8080     50%  on this node; {DEAD}" in lines
    assert exit_status(found) == 1


def test_it_works_partly_if_some_backends_are_in_trouble(capsys, monkeypatch):
    dead, fine = backend(chance=0.5, trouble=DEAD), backend("10.1.0.6", chance=0.5)
    found = answered(backends=[dead, fine])
    first, *_ = shown(capsys, monkeypatch, found)
    assert first == f"works for 1 of 2: 10.1.0.5:8080 {DEAD}"
    assert exit_status(found) == 5
    found["model"]["endpoints"] = [
        {**endpoint, "pod": pod, "node": "", "zone": "", "why": "ready"}
        for endpoint, pod in ((fine, "shop/a"), (dead, "shop/b"))
    ]
    first, *_ = shown(capsys, monkeypatch, found)
    assert first == f"works for 1 of 2: shop/b (10.1.0.5) {DEAD}"


def test_a_backend_to_which_packets_are_dropped_is_in_trouble(capsys, monkeypatch):
    lost = backend("10.1.0.6", reason="no_route", chance=0.5)
    found = answered(backends=[backend(chance=0.5), lost])
    first, *_ = shown(capsys, monkeypatch, found)
    assert first == "works for 1 of 2: 10.1.0.6:8080 gets no packets: no_route"


def test_of_many_backends_in_trouble_the_first_are_named(capsys, monkeypatch):
    dead = [backend(f"10.1.0.{n}", chance=0.2, trouble=DEAD) for n in range(1, 5)]
    first, *_ = shown(capsys, monkeypatch, answered(backends=[*dead, backend("10.1.0.9")]))
    assert first == f"works for 1 of 5: 10.1.0.1:8080 {DEAD}; 10.1.0.2:8080 {DEAD}; 2 more"


@pytest.mark.parametrize(
    ("found", "colour"),
    [
        (answered(backends=[backend()]), 32),
        (answered(backends=[backend(), backend("10.1.0.6", trouble=DEAD)]), 33),
        (answered("refused"), 31),
        (answered("passes", frontend=None), 36),
    ],
    ids=["works", "partly", "fails", "passes"],
)
def test_each_outcome_has_a_colour_of_its_own(monkeypatch, found, colour):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert rendered(found).startswith(f"\x1b[1;{colour}m")


def test_flows_and_sockets_are_shown_up_to_a_point(capsys, monkeypatch):
    sockets = [{"backend": f"10.1.0.{n}", "backend_port": 80, "sockets": n} for n in range(6)]
    lines = shown(capsys, monkeypatch, answered(flows=[FLOW] * 7, sockets=sockets))
    flows = [line for line in lines if "from port 4000 to 10.1.0.5:8080: established" in line]
    assert len(flows) == 5
    assert any(line.strip() == "and 2 more" for line in lines)
    (told,) = (line for line in lines if line.startswith("SOCKETS"))
    assert told.endswith("4 to 10.1.0.4:80, ...")


def test_what_a_backend_sees_of_its_client(capsys, monkeypatch):
    some = [
        backend("10.1.0.1", masquerade="192.0.2.1", hairpin=True),
        backend("10.1.0.2", masquerade="192.0.2.1", local=False),
        backend("10.1.0.3", reason="no_route", chance=0.0),
        backend("10.1.0.4", masquerade="192.0.2.1", local=False, lacks_tunnel=True),
    ]
    text = "\n".join(shown(capsys, monkeypatch, answered(backends=some)))
    assert "on this node; the client itself, sees 192.0.2.1 as the source" in text
    assert "not on this node; sees 192.0.2.1 as the source, redirected past FORWARD" in text
    assert "on this node; dropped: no_route" in text
    assert text.count("FORWARD: no tunnel leads to its node (DSR; see `ebpflb doctor`)") == 1


def test_a_backup_has_a_line(capsys, monkeypatch):
    found = answered()
    found["model"]["backup"] = "default/static, once no endpoint of its own is usable"
    lines = shown(capsys, monkeypatch, found)
    (told,) = (line for line in lines if line.startswith("BACKUP"))
    assert told.split(maxsplit=1)[1] == "default/static, once no endpoint of its own is usable"


def test_what_was_meant_for_a_frontend_and_passes(capsys, monkeypatch):
    lines = shown(capsys, monkeypatch, answered("passes"))
    assert lines[0] == "fails: passes unchanged at the socket hook"


def test_a_name_does_not_reach_the_terminal_as_a_command(capsys):
    print(rendered(answered() | {"note": "of \x1b]0;mine"}))
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("side", "backends", "if_empty", "expected"),
    [
        ("elsewhere", [], "pass", Outcome.PASSES),
        ("elsewhere", [{"address": "10.1.0.1"}], "pass", Outcome.FAILS),
        ("elsewhere", [], "drop", Outcome.FAILS),
        ("this node", [], "pass", Outcome.FAILS),
    ],
)
def test_it_passes_if_its_service_says_so(side, backends, if_empty, expected):
    frontend = {
        "elsewhere": {"backends": backends, "if_empty": if_empty},
        "this_node": {"backends": [], "if_empty": "refuse"},
    }
    kernel = {"frontend": frontend, "from": side, "backends": []}
    assert outcome_of({"verdict": "passes", "kernel": kernel}) is expected
