# SPDX-License-Identifier: Apache-2.0
import json
import time
from datetime import datetime

import pytest

from ebpflb.config.moment import rfc3339_ns
from ebpflb.dataplane.layout.enums import FlowEvent, FlowPath
from ebpflb.dataplane.layout.records import pack_name
from ebpflb.dataplane.layout.structs import FLOW_RECORD_VERSION, LbAddr
from ebpflb.errors import MapError
from ebpflb.model.changes import Changes
from ebpflb.model.flow import Flow, read_flow, time_of_id
from ebpflb.model.objects.kinds import key_of
from ebpflb.model.pod import Pod
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.metrics.latency import ServiceLatency
from ebpflb.observe.metrics.service_readings import PortLabels
from tests.builders import (
    NODE,
    OTHER_NODE,
    address,
    endpoint,
    endpoint_slice,
    port_name,
    service,
    service_port,
)
from tests.memory_maps import memory_maps
from tests.unit.agent.flows import SERVICE, pod_of, record, refused


@pytest.fixture
def changes():
    known = Changes(NODE)
    known.set(service("web", service_port(node_port=30080, affinity_timeout=60)))
    known.set(
        endpoint_slice(
            "web-1",
            endpoint("10.1.0.1", OTHER_NODE, pod="default/web-a", zone="z1"),
            endpoint("10.1.0.9", pod="default/client"),
        )
    )
    return known


@pytest.fixture
def maps():
    made = memory_maps({})
    made["lb_names"].update(SERVICE.to_bytes(4, "little"), pack_name(port_name()))
    return made


@pytest.fixture
def log(changes, maps):
    return FlowLog(10, changes, lambda: maps, pod_of(changes))


def told(log, raw):
    log.accept([raw])
    return json.loads(log.line(3, log.history.since(0).records[-1]))


def test_a_connection_is_shown_with_all_names(log):
    flow = told(log, record())
    backend = {"address": "10.1.0.1", "port": 8080, "pod": "default/web-a"}
    backend.update(node=OTHER_NODE, zone="z1", local=False)
    when = flow.pop("time")
    assert when.startswith(time.strftime("%Y-%m-%dT", time.gmtime()))
    named = flow.pop("id")
    assert (rfc3339_ns(time_of_id(named)), named[-2:]) == (when, "-3")
    assert flow == {
        "event": "end",
        "verdict": "forwarded",
        "ended": "closed",
        "protocol": "TCP",
        "family": "IPv4",
        "path": "socket",
        "client": {"address": "10.1.0.9", "port": 40000, "pod": "default/client"},
        "frontend": {"address": "10.96.0.10", "port": 80, "type": "ClusterIP"},
        "service": {"namespace": "default", "name": "web"},
        "backend": backend,
        "source": "this_node",
        "policy": {"internal": "Cluster", "external": "Cluster", "affinity_timeout": 60},
        "snat": False,
        "hairpin": False,
        "seconds": 1.5,
        "bytes": {"original": 100, "reply": 2000},
        "packets": {"original": 5, "reply": 4},
        "rtt_seconds": 0.00025,
        "retransmits": 0,
        "seq": 3,
    }


def test_a_refusal_has_a_reason_and_nothing_that_it_cannot_have(log):
    raw = refused(frontend="192.168.0.1", frontend_port=30080, path=FlowPath.LB_PATH_TC)
    flow = told(log, raw)
    assert (flow["verdict"], flow["reason"], flow["path"]) == ("refused", "no_endpoint", "tc")
    assert flow["frontend"]["type"] == "NodePort"
    assert not flow.keys() & {"backend", "ended", "seconds", "bytes", "packets", "rtt_seconds"}


def test_a_client_without_an_address_yet_is_not_reported(log):
    flow = told(log, refused(client=LbAddr(), client_port=0))
    assert "client" not in flow


def test_what_belongs_to_no_service_is_reported_without_names(log):
    flow = told(log, refused(service=0, client="fd00::1", frontend="fd00::2"))
    assert (flow["family"], flow["client"]) == ("IPv6", {"address": "fd00::1", "port": 40000})
    assert not flow.keys() & {"service", "policy"}


def test_names_are_those_of_the_time_of_the_record_or_the_last_ones(log, changes, maps):
    log.accept([record()])
    changes.set(endpoint_slice("web-1", endpoint("10.1.0.1", NODE, pod="default/web-b")))
    (stored,) = log.history.since(0).records
    assert log.flow(0, stored).backend.pod == "default/web-a"
    assert told(log, record())["backend"]["pod"] == "default/web-b"
    maps["lb_names"].delete(SERVICE.to_bytes(4, "little"))
    assert told(log, record())["service"] == {"namespace": "default", "name": "web"}


def test_pods_of_this_node_are_reported_with_what_made_them_also_when_they_are_gone(log, changes):
    job = Pod("jobs", "backup-1", (address("10.1.0.7"),), workload="CronJob/backup")
    here = Pod("default", "web-a", (address("10.1.0.1"),), workload="Deployment/web")
    changes.set(job)
    changes.set(here)
    flow = told(log, record(client="10.1.0.7"))
    assert flow["client"]["pod"] == "jobs/backup-1"
    assert flow["client"]["workload"] == "CronJob/backup"
    assert (flow["backend"]["pod"], flow["backend"]["workload"]) == (
        "default/web-a",
        "Deployment/web",
    )
    changes.remove(key_of(job))
    (stored,) = log.history.since(0).records
    assert log.flow(0, stored).client.pod == "jobs/backup-1"


def test_a_workload_is_not_that_of_another_pod_with_the_address(log, changes):
    changes.set(Pod("default", "other", (address("10.1.0.1"),), workload="Deployment/other"))
    backend = told(log, record())["backend"]
    assert backend["pod"] == "default/web-a"
    assert "workload" not in backend


def test_names_that_no_pod_and_no_node_can_have_are_cut_so_that_everybody_can_read_the_flow(
    log, changes
):
    long = endpoint("10.1.0.1", "n" * 600, pod=f"default/{'p' * 600}", zone="z" * 600)
    changes.set(endpoint_slice("web-1", long))
    log.accept([record()])
    line = log.line(0, log.history.since(0).records[-1])
    assert isinstance(read_flow(line), Flow)
    backend = json.loads(line)["backend"]
    assert backend["pod"] == f"default/{'p' * 499}"
    assert (backend["node"], backend["zone"]) == ("n" * 253, "z" * 253)


def test_records_of_another_version_are_counted_and_skipped(log):
    log.accept([record(version=FLOW_RECORD_VERSION + 1), record(), b"", refused(), record()])
    assert (log.unreadable, log.history.end) == (2, 3)
    assert log.counts == {"end": 2, "refused": 1}


def test_what_no_program_of_ours_would_write_harms_nobody(log, maps, monkeypatch):
    assert told(log, record(proto=0))["protocol"] == "0"

    def fail(_):
        raise MapError("lb_names", "lookup", 5)

    monkeypatch.setattr(maps["lb_names"], "lookup", fail)
    assert "service" not in told(log, record())


def test_before_there_are_maps_there_are_no_names(changes):
    log = FlowLog(10, changes, lambda: None, pod_of(changes))
    flow = told(log, record(FlowEvent.LB_FLOW_START))
    assert "service" not in flow
    assert flow["backend"] == {"address": "10.1.0.1", "port": 8080, "pod": "default/web-a"}


def test_times_are_those_of_the_wall_clock(log):
    log.accept([record()])
    flow = log.flow(0, log.history.since(0).records[0])
    told = datetime.fromisoformat(f"{flow.time[:26]}+00:00").timestamp()
    assert abs(told - time.time()) < 1


def test_what_is_counted_as_latency_can_be_found_by_its_number(changes, maps):
    latency = ServiceLatency()
    log = FlowLog(10, changes, lambda: maps, pod_of(changes), latency=latency)
    log.accept([refused()])
    log.accept([refused(), record()])
    (reading,) = latency.readings({port_name(): PortLabels("default", "web", "80", "TCP")})
    (exemplar,) = filter(None, reading.exemplars)
    (stored,) = log.history.since(2).records
    assert exemplar.flow == log.flow(2, stored).id
    assert exemplar.when == pytest.approx(stored.time / 1e9)
