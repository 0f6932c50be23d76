# SPDX-License-Identifier: Apache-2.0
"""A complete agent process except for the kernel: real manifests, servers, signals and threads."""

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from ebpflb.agent import process
from ebpflb.agent.loop import Wakeup
from ebpflb.agent.rights import Rights
from ebpflb.agent.sources import ManifestSource
from ebpflb.cli.agent_client import stream
from ebpflb.config.settings import load_settings
from ebpflb.errors import ConfigError
from ebpflb.model.agent_report import NetworkReport, WayReport
from ebpflb.model.compact import from_compact
from ebpflb.model.compact.frontends import form_decoder, rows_decoder
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.observe.flows import pipeline
from ebpflb.observe.http.query_port import QueryPort
from ebpflb.source.interface import Announcement
from tests.builders import node_manifest, port_manifest, service_manifest, slice_manifest
from tests.ports import free_port, free_ports
from tests.unit.agent.flows import record
from tests.unit.agent.node import MemoryNode
from tests.unit.mutual import Mounted, ask
from tests.unit.observe.flows.ring import Ring

SECONDS = 60


class Node(MemoryNode):
    """Stands in for NodeDataplane."""

    families = ("IPv4", "IPv6")
    lacks: Mapping[str, str] = MappingProxyType({"IPv6": "not there: IPv4 only"})

    def __init__(self, _settings):
        super().__init__(time.monotonic)
        self.usage: Mapping[str, tuple[int, int]] = {}
        self.written = threading.Event()
        self.closed = False

    def close(self):
        self.closed = True

    def addresses_in(self, cookie):
        return ()

    def note_sync(self, when):
        pass

    def report(self):
        return NetworkReport(forwarding=WayReport("redirect", "the option forwarding"))


@pytest.fixture
def node(monkeypatch, logging_as_before):
    made = Node(None)
    monkeypatch.setattr(process, "NodeDataplane", lambda _settings: made)
    monkeypatch.setattr(process, "settle", lambda: None)
    # This process has to run more tests.
    monkeypatch.setattr(process, "agent_role", lambda: None)
    give_up = Rights.give_up
    monkeypatch.setattr(Rights, "give_up", lambda self, role: role and give_up(self, role))
    return made


@pytest.fixture
def settings(tmp_path):
    ports = free_ports(2)
    given = {
        "manifests": str(tmp_path),
        "cgroup-root": "/cg",
        "node-name": "node-a",
        "metrics-bind-address": f"127.0.0.1:{ports[0]}",
        "healthz-bind-address": f"127.0.0.1:{ports[1]}",
        "query-socket": str(tmp_path / "agent.sock"),
    }
    return load_settings(given, {})


def get(bind_address, path):
    with closing(http.client.HTTPConnection(bind_address, timeout=SECONDS)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def is_in_sync(bind_address):
    try:
        return json.loads(get(bind_address, "/status")[1])["in_sync"]
    except ConnectionError:
        return False


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.01)


def run_while(settings, act):
    """Run the agent in this thread, the main one, and `act` in another; SIGTERM at its end."""
    failures = []

    def meanwhile():
        try:
            act()
        except BaseException as failure:  # noqa: BLE001  told to the test below
            failures.append(failure)
        os.kill(os.getpid(), signal.SIGTERM)

    actor = threading.Thread(target=meanwhile)
    actor.start()
    process.run(settings)
    actor.join()
    assert not failures, failures


def write(settings, *manifests):
    items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    (settings.manifests / "web.json").write_text(json.dumps(items))


def test_from_a_manifest_to_the_maps_and_to_the_outside(node, settings, capsys):
    def act():
        wait_until(lambda: is_in_sync(settings.metrics_bind_address))
        assert get(settings.healthz_bind_address, "/healthz")[0] == 200
        write(settings, service_manifest(), slice_manifest())
        wait_until(lambda: node.served() == {"web": ["10.1.0.1"]})
        page = get(settings.metrics_bind_address, "/metrics")[1].decode()
        assert 'kubeproxy_proxy_healthz_total{code="200"} 1.0' in page
        assert 'ebpflb_kernel_lacks{feature="IPv6"} 1.0' in page

    before = signal.getsignal(signal.SIGTERM)
    run_while(settings, act)
    assert node.closed
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(ConnectionRefusedError):
        get(settings.metrics_bind_address, "/status")
    lines = capsys.readouterr().err.splitlines()
    said = [line.split("msg=")[1].split(" services")[0] for line in lines]
    # Threads that do not run as root cannot give up its rights, and say so.
    assert [each for each in said if not each.startswith('"cannot give up rights')] == [
        f"started version=0.1.0 node=node-a source={settings.manifests}",
        '"missing kernel feature, workaround: not there: IPv4 only" feature=IPv6',
        '"in sync"',
        '"stopped; loaded programs keep running"',
    ]


def test_health_checks_are_answered_from_a_manifest_on(node, settings):
    port = free_port()
    local: dict[str, Any] = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    local["healthCheckNodePort"] = port
    at = f"127.0.0.1:{port}"

    def act():
        write(settings, service_manifest(**local), slice_manifest())
        wait_until(lambda: node.served() == {"web": ["10.1.0.1"]})
        wait_until(lambda: answer_at(at))
        status, body = answer_at(at)
        assert status == 200
        assert json.loads(body)["localEndpoints"] == 1
        write(settings, service_manifest(**{**local, "externalTrafficPolicy": "Cluster"}))
        wait_until(lambda: answer_at(at) is None)

    run_while(settings, act)


def test_flows_are_reported_at_the_socket_in_the_metrics_and_in_the_export(
    node, settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(pipeline, "KernelMap", Ring)
    monkeypatch.setattr(pipeline, "FlowRing", lambda ring: ring)
    node.maps["lb_flows"] = Ring([record(), b"of another version"])
    exported = tmp_path / "flows"

    def act():
        wait_until(lambda: exported.exists() and exported.read_text())
        (line,) = stream(settings.query_socket, ("flows",), {})
        assert line.decode() == exported.read_text()
        page = get(settings.metrics_bind_address, "/metrics")[1].decode()
        assert "ebpflb_flow_records_unreadable_total 1.0" in page
        assert "ebpflb_flow_export_lost_total 0.0" in page
        assert "ebpflb_flow_history_lost_total 0.0" in page
        assert "ebpflb_flow_history_damaged_files_total 0.0" in page

    run_while(replace(settings, flow_export=str(exported)), act)
    assert not settings.query_socket.exists()


def test_records_that_cannot_be_kept_are_counted_in_the_metrics(
    node, settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(pipeline, "KernelMap", Ring)
    monkeypatch.setattr(pipeline, "FlowRing", lambda ring: ring)
    node.maps["lb_flows"] = Ring([record(), record()])
    directory = tmp_path / "kept" / "flows"
    directory.parent.mkdir()
    directory.write_text("not a directory")

    def is_counted():
        page = get(settings.metrics_bind_address, "/metrics")[1].decode()
        return "ebpflb_flow_history_lost_total 2.0" in page

    kept = replace(settings, flow_history_bytes=1 << 20, flow_history_directory=directory)

    def act():
        wait_until(lambda: is_in_sync(settings.metrics_bind_address))
        wait_until(is_counted)

    run_while(kept, act)
    assert directory.read_text() == "not a directory"


@pytest.fixture
def observed(settings, tmp_path):
    """The relay may ask, once there are certificates."""
    (tmp_path / "certificates").mkdir()
    return replace(
        settings,
        observe_bind_address=f"127.0.0.1:{free_port()}",
        observe_tls_directory=tmp_path / "certificates",
    )


def port_of(bind_address):
    return int(bind_address.rpartition(":")[2])


def told_to_relay(settings, relay):
    """The Services of the node."""
    answer = ask(port_of(settings.observe_bind_address), relay, "/v1/services")
    assert answer.status == 200
    rows = rows_decoder.decode(from_compact(answer.body.decode()))
    return [form_decoder.decode(row.form).name.service for row in rows]


def test_the_relay_is_told_what_the_query_socket_tells(node, observed, parties):
    Mounted(observed.observe_tls_directory).put(parties.agent)

    def act():
        write(observed, service_manifest(), slice_manifest())
        wait_until(lambda: node.served() == {"web": ["10.1.0.1"]})
        assert told_to_relay(observed, parties.relay) == ["web"]
        for path in ("flows", "names", "connections", "services"):
            there = ask(port_of(observed.observe_bind_address), parties.relay, f"/v1/{path}")
            here = b"".join(stream(observed.query_socket, (path,), {}))
            assert (there.status, there.body) == (200, here)
        refused = ask(port_of(observed.observe_bind_address), parties.agent, "/v1/services")
        assert refused.status == 403

    run_while(observed, act)
    with pytest.raises(ConnectionRefusedError):
        told_to_relay(observed, parties.relay)


def test_without_certificates_services_are_served_and_the_relay_is_told_once_they_are_there(
    node, observed, parties, capsys
):
    def act():
        write(observed, service_manifest(), slice_manifest())
        wait_until(lambda: node.served() == {"web": ["10.1.0.1"]})
        for _ in range(2):
            with pytest.raises((OSError, http.client.HTTPException)):
                told_to_relay(observed, parties.relay)
        assert get(observed.healthz_bind_address, "/readyz")[0] == 200
        Mounted(observed.observe_tls_directory).put(parties.agent)
        assert told_to_relay(observed, parties.relay) == ["web"]

    run_while(observed, act)
    assert capsys.readouterr().err.count("cannot read the certificates") == 1


def test_a_port_for_the_relay_that_is_taken_is_tried_again(node, observed, parties, monkeypatch):
    monkeypatch.setattr(process, "QueryPort", partial(QueryPort, retry=0.01))
    Mounted(observed.observe_tls_directory).put(parties.agent)
    taken = socket.create_server(("127.0.0.1", port_of(observed.observe_bind_address)))

    def is_told():
        try:
            return told_to_relay(observed, parties.relay) == ["web"]
        except ConnectionRefusedError:
            return False

    def act():
        write(observed, service_manifest(), slice_manifest())
        wait_until(lambda: node.served() == {"web": ["10.1.0.1"]})
        taken.close()
        wait_until(is_told)

    run_while(observed, act)


def answer_at(bind_address):
    try:
        return get(bind_address, "/")
    except ConnectionError:
        return None


@pytest.fixture
def announced(monkeypatch):
    told = []
    monkeypatch.setattr(
        ManifestSource, "announce", lambda _self, announcement: told.append(announcement)
    )
    return told


@pytest.mark.parametrize("hard_fail", [False, True])
def test_a_health_port_in_use_is_reported_at_the_node(node, settings, announced, hard_fail):
    port = int(settings.healthz_bind_address.rpartition(":")[2])
    error = f"127.0.0.1:{port}: Address already in use"

    def act():
        wait_until(lambda: announced)

    with socket.create_server(("127.0.0.1", port)):
        if hard_fail:
            with pytest.raises(ConfigError, match="cannot listen at 127"):
                process.run(replace(settings, bind_address_hard_fail=True))
        else:
            run_while(settings, act)
    assert announced == [
        Announcement(
            ObjectKey(Kind.NODE, "", "node-a"),
            "FailedToStartProxierHealthcheck",
            f"failed to start proxier healthz on {error}",
        )
    ]


def test_a_second_signal_ends_the_process_at_once(bench):
    told: list[object] = []
    agent = bench.agent
    agent.tell = told.append
    with process._ended_by_signals(agent):
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert told == [Wakeup.STOP]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_thread_that_fails_ends_the_process_with_its_error(node, settings, monkeypatch):
    def fail(_self, _watch):
        raise ZeroDivisionError("a bug in the source")

    before = threading.excepthook
    monkeypatch.setattr("ebpflb.source.directory.DirectorySource._compare_all", fail)
    with pytest.raises(ZeroDivisionError, match="a bug in the source"):
        process.run(settings)
    assert node.closed
    assert threading.excepthook is before


def test_without_addresses_there_are_no_ports(node, settings, tmp_path, monkeypatch):
    given = {"manifests": str(tmp_path), "cgroup-root": "/cg", "node-name": "node-a"}
    silent = {**given, "metrics-bind-address": "", "healthz-bind-address": ""}

    def act():
        wait_until(lambda: "start" in node.calls)

    monkeypatch.delattr(process, "TcpPort")
    run_while(load_settings(silent, {}), act)


def test_the_ports_of_its_own_servers_are_protected(node, observed):
    settings, metrics = observed, observed.metrics_bind_address
    servers = (metrics, settings.healthz_bind_address, settings.observe_bind_address)
    ports = sorted(port_of(each) for each in servers)
    asked = [port_manifest(port, f"port-{port}") for port in (*ports, 80)]
    there = node_manifest("node-a", addresses=("192.0.2.1",))
    asking = service_manifest(ports=asked, externalIPs=["192.0.2.1"])

    def told():
        return json.loads(get(metrics, "/status")[1])["addresses_refused"]

    def act():
        wait_until(lambda: is_in_sync(metrics))
        write(settings, there, asking, slice_manifest())
        wait_until(told)
        (line,) = told()
        assert f"192.0.2.1 not served at port {', '.join(map(str, ports))}: " in line

    run_while(settings, act)
