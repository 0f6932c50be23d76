# SPDX-License-Identifier: Apache-2.0
"""The agent's own state in /status, metrics and its log."""

import os

from ebpflb.model.admission.tables import MOST_OF_NAMESPACE
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.model.service import TrafficPolicy
from ebpflb.words.scheduler import TABLE_SIZE, Scheduler
from tests.builders import NODE, address, endpoint, endpoint_slice, port_name, service, service_port
from tests.unit.agent_reports import agent_report


def test_the_report_of_a_node_that_is_served(bench):
    bench.say(service("web"), endpoint_slice("web-1", endpoint()))
    bench.turn()
    report = bench.report()
    assert report.pop("started") <= report["last_sync"]
    assert report.pop("last_sync").endswith("Z")
    expected = agent_report(node=NODE, pid=os.getpid(), services=1, frontends=1)
    assert report == {name: expected[name] for name in report}
    assert expected.keys() - report.keys() == {"started", "last_sync"}


def test_a_change_that_waits_is_not_in_sync(bench):
    bench.say()
    bench.turn()
    bench.health.queued()
    assert bench.report()["in_sync"] is False


def test_source_errors_are_said_once_and_taken_back(bench, caplog):
    caplog.set_level("INFO")
    error = {"/m/a.yaml": "/m/a.yaml: document 1: broken"}
    bench.say(errors=error)
    bench.turn()
    bench.say(service("x"), errors=error)
    bench.turn()
    assert bench.report()["source_errors"] == error
    assert caplog.text.count("broken") == 1
    bench.say(errors={})
    bench.turn()
    assert bench.report()["source_errors"] == {}
    assert caplog.text.count("readable again or removed") == 1


def test_an_object_that_cannot_be_read_has_an_event(bench):
    key = ObjectKey(Kind.SERVICE, "default", "web")
    errors = {key: "Service default/web: broken", ObjectKey(Kind.POD, "", ""): "Pod: broken"}
    for _ in range(2):
        bench.say(errors=errors)
        bench.turn()
    (told,) = bench.announced
    assert (told.about, told.reason) == (key, "Unreadable")
    assert told.note == (
        "node node-a keeps its last readable version in force: Service default/web: broken"
    )
    assert bench.report()["source_errors"]["Service default/web"] == "Service default/web: broken"
    assert 'ebpflb_source_errors{file="Service default/web"}' in bench.metrics.page().body.decode()


def test_the_time_without_reading_begins_with_the_first_failure_and_ends_with_the_last(bench):
    bench.metrics.unread(bench.health.unread_seconds, bench.agent.status.stale_seconds)
    bench.say(errors={"api": "cannot read services"})
    bench.turn()
    bench.say(errors={"api": "cannot read services; cannot read nodes"})
    bench.turn(59.0)
    assert bench.report()["unread_seconds"] == 59
    assert bench.samples()["ebpflb_source_unread_seconds"] == 59
    assert bench.report()["in_sync"] is True
    bench.say(errors={"a.yaml": "broken"})
    bench.turn(1.0)
    assert bench.report()["unread_seconds"] == 0


def test_a_state_that_was_only_kept_is_said_to_be_old_until_the_api_server_answers(bench, caplog):
    caplog.set_level("INFO")
    bench.metrics.unread(bench.health.unread_seconds, bench.agent.status.stale_seconds)
    error = {"api": "cannot reach the API server"}
    for _ in range(2):
        bench.say(service("web"), errors=error, as_of=1_000_000.0)
        bench.turn()
    assert bench.report()["services"] == 1
    assert bench.report()["stale_since"] == "1970-01-12T13:46:40.000000Z"
    assert bench.samples()["ebpflb_source_stale_seconds"] > 1e9
    # As for each agent that cannot read the API server for a while.
    assert bench.health.unready() == ""
    assert bench.health.readiness()[0]
    bench.turn(60.0)
    assert "cannot be read" in bench.health.unready()
    assert bench.health.readiness()[0]
    bench.say(service("new"), gone=(service("web"),))
    bench.turn()
    assert (bench.report()["stale_since"], bench.health.unready()) == (None, "")
    assert bench.samples()["ebpflb_source_stale_seconds"] == 0
    assert caplog.text.count("serving what it had then") == 1
    assert caplog.text.count("serving what it has\n") == 1


def page(bench):
    return bench.metrics.page().body.decode()


def test_source_errors_are_metrics(bench):
    bench.say(errors={"/m/a.yaml": "broken"})
    bench.turn()
    assert 'ebpflb_source_errors{file="/m/a.yaml"} 1.0' in page(bench)


def test_two_services_with_one_address_are_a_conflict(bench, caplog):
    bench.say(service("a"), service("b"))
    bench.turn()
    text = "default/b does not get TCP 10.96.0.10 port 80: default/a has it"
    assert bench.report()["conflicts"] == [text]
    assert bench.samples()["ebpflb_conflicts"] == 1
    bench.say(service("c", service_port("10.96.0.99")))
    bench.turn()
    assert caplog.text.count(text) == 1
    bench.say(gone=(service("a"),))
    bench.turn()
    assert bench.report()["conflicts"] == []


def test_a_refused_address_is_said_once_and_costs_nothing_else(bench, caplog):
    asked = service_port(external_ips=(address("127.0.0.1"), address("192.0.2.1")))
    bench.say(service("web", asked), endpoint_slice("web-1", endpoint()))
    bench.turn()
    bench.say(service("x", service_port("10.96.0.99")))
    bench.turn()
    text = "externalIPs: 127.0.0.1 not served: a loopback address"
    assert bench.report()["addresses_refused"] == [f"default/web: {text}"]
    assert bench.report()["misconfigured"] == []
    assert bench.report()["frontends"] == 3
    assert 'ebpflb_addresses_refused{reason="loopback"} 1.0' in page(bench)
    assert caplog.text.count(text) == 1
    assert [(each.about.name, each.reason, each.note) for each in bench.announced] == [
        ("web", "AddressRefused", text)
    ]
    bench.say(service("web"))
    bench.turn()
    assert bench.report()["addresses_refused"] == []
    assert 'ebpflb_addresses_refused{reason="loopback"} 0.0' in page(bench)


def test_a_service_without_its_lookup_table_is_said_once(bench, caplog):
    ports = [
        service_port(f"10.97.{number // 250}.{number % 250}", name=port_name(f"p{number}"))
        for number in range(MOST_OF_NAMESPACE // TABLE_SIZE + 1)
    ]
    bench.say(service("web", *ports, scheduler=Scheduler.MAGLEV))
    bench.turn()
    bench.say(service("x", service_port("10.96.0.99")))
    bench.turn()
    (told,) = bench.report()["without_table"]
    assert told.startswith("default/web: scheduler random without weights instead: ")
    assert bench.report()["in_sync"] is True
    assert bench.samples()["ebpflb_services_without_table"] == 1
    assert caplog.text.count("scheduler random without weights instead") == 1
    assert [(each.about.name, each.reason) for each in bench.announced] == [
        ("web", "NoLookupTable")
    ]
    bench.say(service("web"))
    bench.turn()
    assert bench.report()["without_table"] == []
    assert bench.samples()["ebpflb_services_without_table"] == 0


def test_a_wrong_annotation_is_said_once_and_does_no_harm(bench, caplog):
    text = "metadata.annotations.ebpflb.io/scheduler: must be one of random"
    wrong = service("web", problems=(text,))
    bench.say(wrong, endpoint_slice("web-1", endpoint()))
    bench.turn()
    bench.say(service("x", service_port("10.96.0.99")))
    bench.turn()
    assert bench.report()["misconfigured"] == [f"default/web: {text}"]
    assert bench.report()["frontends"] == 2
    assert bench.samples()["ebpflb_services_misconfigured"] == 1
    assert caplog.text.count(text) == 1
    assert [(each.about.name, each.reason, each.note) for each in bench.announced] == [
        ("web", "InvalidAnnotation", text)
    ]
    bench.say(service("web"))
    bench.turn()
    assert bench.report()["misconfigured"] == []
    assert bench.samples()["ebpflb_services_misconfigured"] == 0


def test_changes_are_counted_by_kind(bench):
    bench.say(service("web"), endpoint_slice("web-1", endpoint()))
    bench.turn()
    bench.say(gone=(endpoint_slice("web-1"),))
    bench.turn()
    samples = bench.samples()
    assert samples["kubeproxy_sync_proxy_rules_service_changes_total"] == 2
    assert samples["kubeproxy_sync_proxy_rules_endpoint_changes_total"] == 2
    assert samples["ebpflb_frontends"] == 1


def test_ports_without_a_local_endpoint_are_metrics(bench):
    port = service_port(internal_policy=TrafficPolicy.LOCAL)
    bench.say(service("web", port), endpoint_slice("web-1", endpoint(node="node-z")))
    bench.turn()
    page = bench.metrics.page().body.decode()
    name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
    assert f'{name}{{ip_family="IPv4",traffic_policy="internal"}} 1.0' in page


def test_only_the_first_sync_is_worth_a_line_without_verbosity(bench, caplog):
    caplog.set_level("DEBUG")
    bench.say(service("web"))
    bench.turn()
    bench.say(endpoint_slice("web-1", endpoint()))
    bench.turn()
    bench.turn()
    said = [(record.levelname, record.message) for record in caplog.records]
    assert said == [("DEBUG", "synced"), ("INFO", "in sync"), ("DEBUG", "synced")]
