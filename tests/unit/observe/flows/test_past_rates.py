# SPDX-License-Identifier: Apache-2.0
"""What records in memory and in files say of a time in the past."""

import time
from pathlib import Path

import pytest

from ebpflb.config.moment import rfc3339_ns
from ebpflb.dataplane.layout.enums import DropReason, FlowEnd, FlowEvent
from ebpflb.dataplane.layout.records import pack_name
from ebpflb.model.changes import Changes
from ebpflb.model.compact import from_compact
from ebpflb.model.compact.past_rates import decode_past
from ebpflb.model.flow import LostFlows, flow_line
from ebpflb.observe.flows import past_rates
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.kept_flows import KeptFlows
from ebpflb.observe.flows.past_rates import PastRatesQueries
from ebpflb.observe.http.query_socket import HttpQueryError, Query
from tests.builders import NODE, OTHER_NODE, endpoint, endpoint_slice, port_name, service
from tests.memory_maps import memory_maps
from tests.unit.agent.flows import SERVICE, pod_of, record, refused

SECOND = 1_000_000_000
SHOP = 8


@pytest.fixture
def log():
    changes = Changes(NODE)
    changes.set(service())
    here = endpoint("10.1.0.1", NODE, pod="default/web-a")
    changes.set(endpoint_slice("web-1", here, endpoint("10.1.0.2", OTHER_NODE)))
    maps = memory_maps({})
    for number, name in (
        (SERVICE, port_name()),
        (SHOP, port_name()._replace(namespace="shop", port="http")),
    ):
        maps["lb_names"].update(number.to_bytes(4, "little"), pack_name(name))
    return FlowLog(100, changes, lambda: maps, pod_of(changes))


@pytest.fixture
def kept(tmp_path):
    return KeptFlows(tmp_path / "flows", 1 << 20)


class Ago:
    """Times before now, by the two clocks."""

    def __init__(self) -> None:
        self._kernel = time.monotonic_ns() // SECOND * SECOND + SECOND // 2
        self._wall = time.time_ns() - time.monotonic_ns() + self._kernel

    def record(self, seconds: float) -> int:
        return self._kernel - int(seconds * SECOND)

    def at(self, seconds: float) -> int:
        return self._wall - int(seconds * SECOND)

    def text(self, seconds: float) -> str:
        return rfc3339_ns(self.at(seconds))


def rates(log, kept, ago, namespace="", sample=1):
    """Of the minute that ended 100 seconds ago."""
    return PastRatesQueries(log, kept, sample).rates(ago.at(100), 60.0, namespace)


def keep(log, kept):
    """Files get what is in memory, which is then of a new agent."""
    batch = log.history.since(0)
    kept.write([log.line(at, each) for at, each in enumerate(batch.records, batch.first)])


def test_connections_count_when_they_end_and_all_numbers_are_per_second(log):
    ago = Ago()
    when = ago.record(120)
    log.accept(
        [
            *[record(time=when)] * 3,
            record(time=when, backend_addr="10.1.0.2"),
            record(FlowEvent.LB_FLOW_START, time=when),
            record(FlowEvent.LB_FLOW_DROPPED, time=when),
            record(time=when, service=0),
        ]
    )
    found = rates(log, None, ago)
    assert (found.records.count, found.records.begin) == (5, ago.text(160))
    (web,) = found.services
    assert (web.namespace, web.service, web.port, web.protocol) == ("default", "web", "", "TCP")
    assert (web.connections, web.dropped, web.refused) == (4 / 60, 1 / 60, 0)
    assert (web.original_bytes, web.reply_bytes) == (400 / 60, 8000 / 60)
    assert (web.cross_node_share, web.troubles) == (0.25, ())
    assert (web.active, web.endpoints, web.largest_share, web.even_share) == (None,) * 4
    shown = [(each.name, each.connections, each.local, each.active) for each in web.backends]
    assert shown == [("default/web-a", 3 / 60, True, None), ("10.1.0.2", 1 / 60, False, None)]


def test_only_records_of_that_time_and_that_namespace_count(log):
    ago = Ago()
    log.accept([record(time=ago.record(each)) for each in (161, 159, 101, 99)])
    log.accept([record(time=ago.record(120), service=SHOP)])
    assert rates(log, None, ago).records.count == 3
    (shop,) = rates(log, None, ago, namespace="shop").services
    assert (shop.namespace, shop.port) == ("shop", "http")
    assert not rates(log, None, ago, namespace="bank").services


@pytest.mark.parametrize(
    ("records", "troubles"),
    [
        ([record(end=FlowEnd.LB_END_NO_ANSWER)] * 2, ("default/web-a answers nobody",)),
        ([record(end=FlowEnd.LB_END_BACKEND_REFUSED)], ("default/web-a refuses connections",)),
        ([record(end=FlowEnd.LB_END_NO_ANSWER), record()], ()),
        ([refused(reason=DropReason.LB_DROP_NO_ENDPOINT)], ("no endpoint",)),
        ([refused(reason=DropReason.LB_DROP_NO_LOCAL_ENDPOINT)], ("no local endpoint",)),
        ([refused(reason=DropReason.LB_DROP_UNKNOWN_PORT)], ()),
        ([refused(reason=DropReason.LB_DROP_BACKENDS_FULL)], ("endpoints full",)),
        ([refused(reason=DropReason.LB_DROP_CLIENT_NEW, client="::")], ()),
        (
            [
                refused(reason=DropReason.LB_DROP_CLIENT_NEW, client="198.51.100.1"),
                *[refused(reason=DropReason.LB_DROP_CLIENT_OPEN, client="198.51.100.2")] * 3,
                *[refused(reason=DropReason.LB_DROP_CLIENT_NEW, client="198.51.100.2")] * 2,
                refused(reason=DropReason.LB_DROP_CLIENT_NEW, client="198.51.100.3"),
                refused(reason=DropReason.LB_DROP_CLIENT_NEW, client="198.51.100.4"),
            ],
            (
                "198.51.100.2 over its limit (client_open, 3 times)",
                "198.51.100.2 over its limit (client_new, 2 times)",
                "198.51.100.1 over its limit (client_new, once)",
                "2 more clients over limits",
            ),
        ),
    ],
)
def test_a_service_is_in_trouble_by_what_became_of_its_connections(log, records, troubles):
    ago = Ago()
    log.accept(records)
    (web,) = PastRatesQueries(log, None, 1).rates(ago.at(-60), 3600.0).services
    assert web.troubles == troubles
    assert web.lost


def test_records_of_agents_before_are_in_files_and_each_counts_once(log, kept, tmp_path):
    ago = Ago()
    log.accept([record(time=ago.record(120)), record(time=ago.record(110))])
    keep(log, kept)
    assert rates(log, kept, ago).records.count == 2
    again = FlowLog(100, Changes(NODE), lambda: None, pod_of(Changes(NODE)))
    found = rates(again, KeptFlows(tmp_path / "flows", 1 << 20), ago)
    assert (found.records.count, found.records.oldest[:19]) == (2, ago.text(120)[:19])
    assert found.services[0].backends[0].pod == "default/web-a"


def test_how_many_may_be_missing_is_told(log, kept):
    ago = Ago()
    log.accept([record(time=ago.record(120))])
    keep(log, kept)
    for lost, since, until in ((1, 170, 165), (20, 165, 150), (300, 120, 90), (4000, 99, 90)):
        kept.write([flow_line(LostFlows(lost=lost, since=ago.text(since), time=ago.text(until)))])
    kept.write([flow_line(LostFlows(lost=50000))])
    assert rates(log, kept, ago).records.lost == 320
    assert rates(log, None, ago).records.lost is None


def test_how_many_are_recorded_and_since_when_is_told(log):
    ago = Ago()
    assert rates(log, None, ago, sample=10).records.oldest == ""
    log.accept([record(time=ago.record(50)), record(time=ago.record(40))])
    found = rates(log, None, ago, sample=10)
    assert (found.records.sample, found.records.count, found.services) == (10, 0, [])
    assert found.records.oldest[:19] == ago.text(50)[:19]


def ask(log, **parameters):
    answer = PastRatesQueries(log, None, 1).answer(Query((), parameters))
    return decode_past(from_compact(answer.body.decode()))


def test_an_agent_is_asked_for_a_moment_a_window_and_a_namespace(log):
    log.accept([record()])
    found = ask(log, at="2026-11-24T03:10Z", window="5m", namespace="shop").records
    assert (found.begin[:19], found.end[:19]) == ("2026-11-24T03:05:00", "2026-11-24T03:10:00")
    found = ask(log, at="2026-11-24T03:10Z").records
    assert found.begin[:19] == "2026-11-24T03:09:00"


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"window": "5m"}, "at: say when"),
        ({"at": "noon"}, "at: 'noon': want a time, as in 03:10 or 2026-11-24T03:10, or how long"),
        ({"at": "1m", "window": "0.5"}, "window: '0.5': want from 1s to 24h"),
        ({"at": "1m", "window": "25h"}, "window: '25h': want from 1s to 24h"),
        ({"at": "1m", "interval": "1"}, "unknown parameter 'interval'"),
    ],
)
def test_what_cannot_be_meant_is_reported(log, parameters, why):
    with pytest.raises(HttpQueryError) as caught:
        ask(log, **parameters)
    assert str(caught.value).startswith(why)


def test_one_is_answered_at_a_time_and_others_do_not_wait_for_ever(log, monkeypatch):
    monkeypatch.setattr(past_rates, "_PATIENCE_SECONDS", 0.01)
    queries = PastRatesQueries(log, None, 1)
    query = Query((), {"at": "1m"})

    class MeanwhileAsked(KeptFlows):
        def records(self, *_):
            with pytest.raises(HttpQueryError, match="the agent answers others") as caught:
                queries.answer(query)
            assert caught.value.status == 503
            return iter(())

        def flows(self, *_):
            return iter(())

    queries._kept = MeanwhileAsked(Path("/nowhere"), 0)
    queries.answer(query)
    queries.answer(query)
