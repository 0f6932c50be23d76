# SPDX-License-Identifier: Apache-2.0
import json
import threading
import time

import pytest

from ebpflb.dataplane.layout.enums import FlowEvent
from ebpflb.dataplane.layout.records import pack_name
from ebpflb.model.changes import Changes
from ebpflb.model.objects.kinds import Kind, ObjectKey, key_of
from ebpflb.model.pod import Pod
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.kept_flows import KeptFlows
from ebpflb.observe.flows.queries import FlowQueries
from ebpflb.observe.http.query_socket import HttpQueryError, Query
from tests.builders import NODE, address, endpoint, endpoint_slice, port_name, service
from tests.memory_maps import memory_maps
from tests.unit.agent.flows import SERVICE, pod_of, record, refused

SECOND = 1_000_000_000


@pytest.fixture
def changes():
    known = Changes(NODE)
    known.set(service())
    known.set(service("shop"))
    web = endpoint("10.1.0.1", pod="default/web-a")
    known.set(endpoint_slice("web-1", web, endpoint("10.1.0.9", pod="default/curl")))
    return known


@pytest.fixture
def log(changes):
    maps = memory_maps({})
    for number, name in ((SERVICE, "web"), (8, "shop")):
        packed = pack_name(port_name(service=name))
        maps["lb_names"].update(number.to_bytes(4, "little"), packed)
    return FlowLog(10, changes, lambda: maps, pod_of(changes))


@pytest.fixture
def queries(log, changes):
    return FlowQueries(log, changes)


def ask(queries, *path, **parameters):
    """The numbers of the flows in the answer."""
    names = {"source": "from"}
    given = {names.get(name, name): str(value) for name, value in parameters.items()}
    reply = queries.answer(Query(path, given))
    return [json.loads(line)["seq"] for line in b"".join(reply.pieces).splitlines()]


@pytest.fixture
def some(log):
    """One of each kind."""
    old = time.monotonic_ns() - 100 * SECOND
    log.accept(
        [
            record(time=old),
            refused(client="10.1.0.8"),
            record(FlowEvent.LB_FLOW_START, frontend="192.0.2.1"),
            record(FlowEvent.LB_FLOW_DROPPED, service=8),
        ]
    )


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({}, [0, 1, 2, 3]),
        ({"limit": 2}, [2, 3]),
        ({"limit": 0}, []),
        ({"limit": 1, "verdict": "forwarded"}, [2]),
        ({"since": "10s"}, [1, 2, 3]),
        ({"since": 1000}, [0, 1, 2, 3]),
        ({"service": "default/web"}, [0, 1, 2]),
        ({"service": "default/shop"}, [3]),
        ({"verdict": "refused,dropped"}, [1, 3]),
        ({"event": "start"}, [2]),
        ({"source": "10.1.0.8"}, [1]),
        ({"source": "default/curl"}, [0, 2, 3]),
        ({"to": "192.0.2.1"}, [2]),
        ({"to": "default/web-a"}, [0, 2, 3]),
        ({"to": "10.96.0.10", "event": "end"}, [0]),
        ({"source": "fd00::1"}, []),
    ],
)
def test_filters(queries, some, parameters, found):
    assert ask(queries, **parameters) == found


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"service": "default/wep"}, "unknown Service 'default/wep' (did you mean default/web"),
        ({"service": "web"}, "unknown Service 'web'"),
        ({"service": "x/y"}, "unknown Service 'x/y' (2 are known)"),
        ({"source": "default/curly"}, "unknown pod 'default/curly' (did you mean default/curl?)"),
        ({"to": "10.1.0"}, "'10.1.0' is not an IP address, nor a pod: want NAMESPACE/NAME"),
        ({"verdict": "drops"}, "verdict: 'drops': unknown value 'drops' (did you mean dropped?)"),
        ({"event": "end,ends"}, "event: 'end,ends': unknown value 'ends' (did you mean end?)"),
        ({"since": "yesterday"}, "since: 'yesterday': want a time, as in 03:10"),
        ({"id": "7"}, "id: '7': want the id of a flow, as in the last column of"),
        ({"limit": "-1"}, "limit: '-1': want a number from 0"),
        ({"follow": "maybe"}, "follow: 'maybe': want true or false"),
        ({"services": "default/web"}, "unknown parameter 'services' (did you mean service"),
    ],
)
def test_what_cannot_be_meant_is_reported(queries, parameters, text):
    with pytest.raises(HttpQueryError) as caught:
        ask(queries, **parameters)
    assert str(caught.value).startswith(text)


def test_there_is_nothing_below_flows(queries):
    with pytest.raises(HttpQueryError, match="nothing below"):
        ask(queries, "default")


def test_a_service_that_is_gone_can_be_asked_for_while_its_flows_are_kept(queries, log, changes):
    log.accept([record()])
    changes.remove(key_of(service()))
    assert ask(queries, service="default/web") == [0]


def test_a_pod_behind_no_service_can_be_asked_for_also_when_it_is_gone(queries, log, changes):
    job = Pod("jobs", "backup-1", (address("10.1.0.7"),))
    changes.set(job)
    log.accept([record(), record(client="10.1.0.7"), record(backend_addr="10.1.0.7")])
    assert ask(queries, source="jobs/backup-1") == [1]
    changes.remove(key_of(job))
    changes.set(Pod("jobs", "backup-2", job.addresses))
    log.accept([record(client="10.1.0.7")])
    assert ask(queries, source="jobs/backup-1") == [1]
    assert ask(queries, source="jobs/backup-2") == [3]
    assert ask(queries, to="jobs/backup-1") == [2]
    assert ask(queries, source="10.1.0.7") == [1, 3]


def test_following_shows_flows_as_they_come_and_counts_those_that_were_missed(
    queries, log, monkeypatch
):
    monkeypatch.setattr("ebpflb.observe.flows.queries._LOOK_SECONDS", 60)
    log.accept([record(), refused()])
    question = Query((), {"follow": "1", "limit": "1", "verdict": "refused"})
    pieces = iter(queries.answer(question).pieces)
    assert json.loads(next(pieces))["seq"] == 1
    threading.Timer(0.05, log.accept, [[refused()]]).start()
    assert json.loads(next(pieces))["seq"] == 2
    log.accept([record()] * 14 + [refused()])
    lost, last = map(json.loads, next(pieces).splitlines())
    assert lost == {"lost": 5}
    assert last["seq"] == 17


def test_following_says_now_and_then_that_there_is_nothing(queries, monkeypatch):
    monkeypatch.setattr("ebpflb.observe.flows.queries._LOOK_SECONDS", 0.01)
    pieces = iter(queries.answer(Query((), {"follow": "true"})).pieces)
    assert [next(pieces) for _ in range(3)] == [b"", b"", b""]


def test_a_long_history_is_never_put_together_as_a_whole(changes):
    log = FlowLog(1000, changes, lambda: None, pod_of(changes))
    log.accept([record() for _ in range(1000)])
    pieces = list(FlowQueries(log, changes).answer(Query((), {})).pieces)
    assert max(piece.count(b"\n") for piece in pieces) < 300
    assert b"".join(pieces).count(b"\n") == 1000


@pytest.fixture
def restarted(log, changes, tmp_path):
    """The queries of an agent; the one before kept flows of a Service and a pod that are gone."""
    before = FlowLog(10, changes, lambda: None, pod_of(changes))
    changes.set(Pod("jobs", "backup-1", (address("10.1.0.7"),)))
    old = time.monotonic_ns() - 100 * SECOND
    log.accept([record(time=old), record(time=old, client="10.1.0.7"), refused()])
    kept = KeptFlows(tmp_path / "flows", 1 << 20)
    kept.write([log.line(at, each) for at, each in enumerate(log.history.since(0).records)])
    changes.remove(key_of(service()))
    changes.remove(ObjectKey(Kind.POD, "jobs", "backup-1"))
    now = FlowQueries(before, changes, KeptFlows(tmp_path / "flows", 1 << 20))
    before.accept([record(), record()])
    return now


def test_what_an_earlier_agent_kept_is_found_by_its_time(restarted):
    assert ask(restarted, limit=20) == [0, 1]
    assert ask(restarted, since="1h") == [0, 1, 2, 0, 1]
    assert ask(restarted, since="1h", limit=3) == [2, 0, 1]
    assert ask(restarted, since="10s") == [2, 0, 1]
    assert ask(restarted, since="1h", until="50s") == [0, 1]
    assert ask(restarted, until="50s") == []
    assert ask(restarted, since="1h", verdict="refused") == [2]


def test_a_flow_is_found_by_its_id_wherever_it_is(restarted, queries):
    """The numbers of records begin anew with each agent."""
    reply = restarted.answer(Query((), {"since": "1h"}))
    found = [json.loads(line) for line in b"".join(reply.pieces).splitlines()]
    assert len({each["id"] for each in found}) == 5
    for each in found:
        (piece,) = restarted.answer(Query((), {"id": each["id"]})).pieces
        assert json.loads(piece) == each
    assert ask(restarted, id=found[0]["id"], verdict="refused") == []
    assert ask(restarted, id=f"{found[0]['id'][:-1]}f") == []


def test_also_by_names_of_what_is_gone(restarted):
    assert ask(restarted, since="1h", service="default/web") == [0, 1, 2]
    assert ask(restarted, since="1h", source="jobs/backup-1") == [1]
    with pytest.raises(HttpQueryError, match="unknown Service"):
        ask(restarted, service="default/web")
    with pytest.raises(HttpQueryError, match="unknown pod"):
        ask(restarted, since="1h", source="jobs/backup-9")
