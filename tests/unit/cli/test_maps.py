# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from ebpflb.cli import maps as command
from ebpflb.dataplane.layout.enums import Direction
from ebpflb.dataplane.layout.structs import LbConntrack
from ebpflb.dataplane.load.pins import Generation
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import WILDCARD, Family, Protocol, parse_address
from ebpflb.model.plan import Choice, FrontendKey, FrontendType, IfEmpty
from ebpflb.model.service import TrafficPolicy
from tests.memory_maps import memory_maps
from tests.unit.cli.invoked import VIEW, output_of
from tests.unit.dataplane.desired import ALLOWED, backends, by_service, frontend, named

DROP = Choice((), IfEmpty.DROP)


@pytest.fixture
def maps(monkeypatch):
    made = memory_maps()
    opened = Generation(1, 1, Path("/pins/1-1")), made
    monkeypatch.setattr(command, "open_pins", lambda _: opened)
    return made


run = partial(output_of, "maps")


def fill(maps, *frontends):
    Sync(maps, quiesce=lambda: None).resync(by_service(*frontends))


def add_flow(maps, backend):
    entry = LbConntrack(direction=Direction.LB_DIR_ORIGINAL, backend=backend, serial=1)
    maps["lb_conntrack"].update(bytes(40), bytes(entry))


def test_the_view_of_a_service(maps):
    far = backends("10.2.0.1", terminating=True).backends
    both = Choice((*backends("10.1.0.1", local=True).backends, *far), IfEmpty.REFUSE)
    fill(maps, frontend(choice=both, service=named("web", "http"), affinity_timeout=60))
    assert run("dump") == VIEW.read_text()


def test_the_two_sets_are_distinguished_where_they_differ(maps):
    here, everywhere = backends("10.1.0.1"), backends("10.1.0.1", "10.1.0.2")
    fill(
        maps,
        frontend(choice=everywhere, others=here),
        frontend("10.96.0.2", everywhere, others=DROP),
        frontend("10.96.0.3"),
    )
    lines = [line.split() for line in run("dump").splitlines()[2:]]
    assert [line[:4] for line in lines] == [
        ["TCP", "10.96.0.1:80", "ClusterIP", "default/web"],
        ["->", "10.1.0.1:8080", "remote", "all"],
        ["->", "10.1.0.2:8080", "remote", "this"],
        ["TCP", "10.96.0.2:80", "ClusterIP", "default/web"],
        ["->", "10.1.0.1:8080", "remote", "this"],
        ["->", "10.1.0.2:8080", "remote", "this"],
        ["->", "(none)", "drop", "elsewhere"],
        ["TCP", "10.96.0.3:80", "ClusterIP", "default/web"],
        ["->", "(none)", "refuse", "all"],
    ]


def test_clients_that_a_frontend_is_for_are_shown_where_it_is_not_for_all(maps):
    fill(maps, frontend(allowed_sources=ALLOWED), frontend("10.96.0.2"))
    lines = [line.split() for line in run("dump").splitlines()[2:]]
    assert [line[:4] for line in lines] == [
        ["TCP", "10.96.0.1:80", "ClusterIP", "default/web"],
        ["<-", "192.0.2.7/32", "source", "range"],
        ["<-", "192.0.2.8/32", "source", "range"],
        ["->", "(none)", "refuse", "all"],
        ["TCP", "10.96.0.2:80", "ClusterIP", "default/web"],
        ["->", "(none)", "refuse", "all"],
    ]
    assert "source_ranges=1 range=192.0.2.7/32" in run("dump", "lb_src_ranges")


def test_the_policy_shown_is_the_one_that_matters(maps):
    inside = frontend(external_policy=TrafficPolicy.LOCAL)
    wildcard = FrontendKey(WILDCARD[Family.IPV6], 30000, Protocol.TCP)
    fill(maps, inside, replace(inside, key=wildcard, type=FrontendType.NODE_PORT))
    output = run("dump")
    assert "10.96.0.1:80  ClusterIP  default/web  Cluster" in output
    assert "[::]:30000    NodePort   default/web  Local" in output


def test_a_backend_that_only_flows_use_is_unusable(maps):
    sync = Sync(maps, quiesce=lambda: None)
    sync.resync(by_service(frontend(choice=backends("10.1.0.1"))))
    add_flow(maps, 0)
    sync.apply(by_service(frontend(choice=backends("10.1.0.2"))))
    last = run("dump").splitlines()[-1].split()
    assert " ".join(last) == "-> 10.1.0.1:8080 remote, unusable no new clients 1 0 0"


def test_a_backend_behind_a_tunnel_says_where_that_leads(maps):
    near = backends("10.1.0.1", local=True).backends
    far = backends("10.2.0.1", "10.2.0.2").backends
    both = Choice((*near, *far), IfEmpty.REFUSE)
    external = frontend("192.0.2.9", both, type=FrontendType.EXTERNAL_IP)
    for_node = backends("10.2.0.1", "10.2.0.3")
    fill(maps, replace(external, local=for_node, dsr=True), frontend("10.96.0.1", both))
    for pod in (*near, *for_node.backends):
        maps["lb_pod_nodes"].update(pod.address, parse_address("192.0.2.2"))
    lines = [" ".join(line.split()) for line in run("dump").splitlines()[2:]]
    assert [line.partition(" 0 ")[0] for line in lines] == [
        "TCP 10.96.0.1:80 ClusterIP default/web Cluster -",
        "-> 10.1.0.1:8080 local all",
        "-> 10.2.0.1:8080 remote all",
        "-> 10.2.0.2:8080 remote all",
        "TCP 192.0.2.9:80 ExternalIP default/web Cluster, DSR -",
        "-> 10.2.0.1:8080 remote, tunnel to 192.0.2.2 all",
        "-> 10.2.0.3:8080 remote this node",
        "-> 10.1.0.1:8080 local elsewhere",
        "-> 10.2.0.2:8080 remote elsewhere",
    ]
    inside, outside = json.loads(run("dump", "-o", "json"))
    assert (inside["dsr"], outside["dsr"]) == (False, True)
    found = [each["tunnel_to"] for each in outside["others"]["backends"]]
    assert found == ["", "192.0.2.2", ""]
    assert {each["tunnel_to"] for each in inside["others"]["backends"]} == {""}
    assert {each["tunnel_to"] for each in outside["local"]["backends"]} == {""}


def test_json_and_yaml(maps):
    fill(maps, frontend(choice=backends("10.1.0.1"), others=DROP))
    shown = json.loads(run("dump", "-o", "json"))
    assert shown == yaml.safe_load(run("dump", "-o", "yaml"))
    (view,) = shown
    assert (view["service"], view["type"], view["port"]) == ("web", "ClusterIP", 80)
    assert view["local"]["backends"][0]["address"] == "10.1.0.1"
    assert view["others"] == {"backends": [], "if_empty": "drop"}


def test_one_service(maps):
    fill(maps, frontend(), frontend("10.96.0.2", service=named("a")))
    output = run("dump", "--service", "default/a")
    assert "10.96.0.2:80" in output
    assert "10.96.0.1:80" not in output


@pytest.mark.parametrize("name", ["/web", "default/", "", "a/b/c"])
def test_a_service_needs_a_name(maps, name):
    assert "want NAME or NAMESPACE/NAME" in run("dump", "--service", name, status=2)


def test_maps_entry_by_entry(maps):
    fill(maps, frontend(choice=backends("10.1.0.1")))
    assert run("dump", "lb_slots", "lb_backends", "lb_frontends").splitlines() == [
        "lb_slots: 0 entries",
        "lb_backends: 1 entry",
        "  0  ->  addr=10.1.0.1 port=8080 proto=tcp flags=usable weight=0 serial=1 service=1",
        "lb_frontends: 1 entry",
        "  addr=10.96.0.1 port=80 proto=tcp  ->  0",
    ]
    shown = json.loads(run("dump", "lb_frontends", "-o", "json"))
    key = {"addr": "10.96.0.1", "port": 80, "proto": "tcp"}
    assert shown == {"lb_frontends": [{"key": key, "value": 0}]}


def test_jsonl_has_a_line_for_each_entry_with_its_map(maps):
    fill(maps, frontend(choice=backends("10.1.0.1")))
    lines = run("dump", "lb_frontends", "lb_backends", "-o", "jsonl").splitlines()
    assert [json.loads(line)["map"] for line in lines] == ["lb_frontends", "lb_backends"]


def test_nested_values_and_empty_ones_on_one_line(maps):
    fill(maps, frontend())
    assert "frontend.addr=10.96.0.1" in run("dump", "lb_descs")
    assert "ns=default service=web port=-" in run("dump", "lb_names")


def test_an_unknown_map_is_a_usage_error_with_the_nearest_names(maps):
    output = run("dump", "lb_backend", status=2)
    assert "unknown map 'lb_backend' (did you mean lb_backends or" in output


def test_service_and_names_exclude_each_other(maps):
    assert "cannot be used with NAME" in run("dump", "lb_slots", "--service", "a/b", status=2)


def test_the_list(maps):
    fill(maps, frontend())
    lines = [line.split() for line in run("list").splitlines()]
    assert lines[0] == ["NAME", "TYPE", "USED", "MAX", "MEMORY"]
    assert ["lb_frontends", "hash", "1", "512", "12.0", "KiB"] in lines
    assert len(lines) == 1 + len(maps)
    listed = {each["name"]: each for each in json.loads(run("list", "-o", "json"))}
    assert listed["lb_addr_flags"] == {
        "name": "lb_addr_flags",
        "type": "array",
        "used": 1,
        "max": 1024,
        "memory": 1024 * 28,
    }


def test_without_pins_there_is_nothing_to_show(tmp_path):
    for arguments in (("list",), ("dump",), ("dump", "lb_slots")):
        output = run(*arguments, "--bpffs-root", str(tmp_path), status=1)
        assert output.startswith(f"Error: nothing is loaded at {tmp_path}")
        assert output.count("\n") == 1


def test_pins_of_another_layout_are_left_to_their_version(tmp_path):
    (tmp_path / "999-1" / "complete").mkdir(parents=True)
    output = run("dump", "--bpffs-root", str(tmp_path), status=1)
    assert "made by a version with map layout 999" in output


def test_the_environment_names_the_pins(tmp_path, monkeypatch):
    monkeypatch.setenv("EBPFLB_BPFFS_ROOT", str(tmp_path))
    assert str(tmp_path) in run("list", status=1)
