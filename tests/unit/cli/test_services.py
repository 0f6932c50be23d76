# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ebpflb.cli import INTERRUPTED, main
from ebpflb.cli import maps as maps_command
from ebpflb.cli import services as command
from ebpflb.dataplane.layout.records import pack_open
from ebpflb.dataplane.layout.structs import LbCounts
from ebpflb.dataplane.load.pins import Generation
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.compact import from_compact
from ebpflb.model.compact.frontends import form_decoder, rows_decoder
from ebpflb.model.extensions.limits import Limits, OpenLimit, rate_limit
from ebpflb.model.service import TrafficPolicy
from ebpflb.words.backup import BackupUse
from tests.memory_maps import memory_maps
from tests.unit.cli.invoked import VIEW, check_narrow, interrupt_after, output_of
from tests.unit.dataplane.desired import backends, by_service, frontend, named

run = partial(output_of, "services")


@pytest.fixture
def maps(monkeypatch):
    made = memory_maps()
    opened = Generation(1, 1, Path("/pins/1-1")), made
    for module in (command, maps_command):
        monkeypatch.setattr(module, "open_pins", lambda _: opened)
    shop = named("web", "http")._replace(namespace="shop")
    both = (
        frontend(choice=backends("10.1.0.1"), service=named("web", "http")),
        frontend("10.96.0.2", backends("10.1.0.2"), service=shop),
    )
    Sync(made, quiesce=lambda: None).resync(by_service(*both))
    return made


def names(*arguments):
    found = json.loads(run(*arguments, "-o", "json"))
    return [f"{each['namespace']}/{each['service']}" for each in found]


def test_the_view_is_that_of_maps_dump(maps):
    assert run().split()[:5] == VIEW.read_text().split()[:5]
    assert run() == output_of("maps", "dump")


def test_the_policy_says_that_a_service_uses_its_backup(maps):
    lent = frontend(choice=backends("10.1.0.1"), backup=BackupUse.ONLY)
    spilled = frontend("10.96.0.3", backends("10.1.0.1"), service=named("api"), dsr=True)
    spilled = replace(spilled, backup=BackupUse.SPILL)
    Sync(maps, quiesce=lambda: None).resync(by_service(lent, spilled))
    lines = [line for line in run().splitlines() if "ClusterIP" in line]
    assert "Cluster, DSR, spills over to its backup" in lines[0]
    assert "Cluster, on its backup" in lines[1]
    assert [each["backup"] for each in json.loads(run("-o", "json"))] == ["spill", "only"]


def test_limits_are_shown_and_which_backends_are_full(maps):
    limits = Limits(OpenLimit(7), new_per_client=rate_limit(90, per_minute=True))
    limited = frontend(choice=backends("10.1.0.8", "10.1.0.9"), limits=limits, counts_open=True)
    Sync(maps, quiesce=lambda: None).resync(by_service(limited))
    index = next(key for key, value in maps["lb_backends"].items() if value[15] == 8)
    maps["lb_open"].update(index, pack_open(7))
    (found,) = json.loads(run("-o", "json"))
    assert found["limits"] == str(limits)
    assert [each["full"] for each in found["local"]["backends"]] == [True, False]
    assert f"Cluster, {limits}" in run()
    assert [line.split()[1:3] for line in run().splitlines() if ":8080" in line] == [
        ["10.1.0.8:8080", "remote,"],
        ["10.1.0.9:8080", "remote"],
    ]
    assert "remote, full" in run()


def test_all_namespaces_are_shown_or_one(maps):
    assert names() == names("-A") == ["default/web", "shop/web"]
    assert names("-n", "shop") == ["shop/web"]
    assert "cannot be used together" in run("-n", "shop", "-A", status=2)


def test_a_service_without_a_namespace_is_in_that_of_n_or_in_default(maps):
    assert names("--service", "web") == ["default/web"]
    assert names("--service", "web", "-n", "shop") == ["shop/web"]
    assert names("--service", "shop/web") == ["shop/web"]


@pytest.mark.parametrize("command", ["services", "maps dump"])
def test_a_service_that_is_not_served_is_one_line(maps, command):
    said = output_of(*command.split(), "--service", "default/wep", "-o", "json", status=1)
    assert said == "Error: no Service default/wep is served (did you mean default/web?)\n"


def test_a_service_may_still_come_while_it_is_watched(maps, monkeypatch):
    interrupt_after(1, monkeypatch)
    assert run("-w", "--service", "wep", "-o", "jsonl", status=INTERRUPTED) == ""


def test_one_object_a_line(maps):
    lines = run("-o", "jsonl").splitlines()
    assert [json.loads(line)["namespace"] for line in lines] == ["default", "shop"]


def compact_rows(*arguments):
    """The form and the row of each frontend."""
    rows = rows_decoder.decode(from_compact(run("--compact", *arguments)))
    return [(form_decoder.decode(row.form), row) for row in rows]


def test_the_compact_answer_has_what_each_frontend_is_and_carried(maps):
    counters = maps["lb_count_front"]
    counted = bytes(LbCounts(connections=2, failed=3, dropped=1)).ljust(counters.value_size, b"\0")
    counters.update(bytes(4), counted)
    (web, of_web), (shop, of_shop) = compact_rows()
    assert (web.name.service, of_web.counts, web.backends) == (
        *("web", (2, 3, 0, 1)),
        ("10.1.0.1:8080",),
    )
    assert (shop.name.namespace, of_shop.counts) == ("shop", (0, 0, 0, 0))
    assert compact_rows("-n", "shop") == [(shop, of_shop)]


def test_a_form_is_what_all_nodes_should_have_alike(maps):
    (web, _), _ = compact_rows()
    here = frontend(choice=backends("10.1.0.1", local=True), service=named("web", "http"))
    Sync(maps, quiesce=lambda: None).resync(by_service(here))
    assert [form for form, _ in compact_rows()] == [web]


def test_backends_that_only_this_node_has_are_not_in_the_form(maps):
    far, near = backends("10.2.0.1"), backends("10.1.0.1", local=True)
    more = frontend("10.96.0.1", far, others=near, service=named("web", "http"))
    own = replace(frontend("10.96.0.2", near), internal_policy=TrafficPolicy.LOCAL)
    Sync(maps, quiesce=lambda: None).resync(by_service(more, own))
    assert [(form.backends, row.more) for form, row in compact_rows()] == [
        ((), ("10.1.0.1:8080",)),
        (("10.2.0.1:8080",), ("10.1.0.1:8080",)),
    ]


def test_the_maps_are_read_again_until_an_interrupt(maps, monkeypatch):
    interrupt_after(2, monkeypatch, between=lambda: Sync(maps, quiesce=lambda: None).resync({}))
    both = run("-w", "-o", "jsonl", status=INTERRUPTED).splitlines()
    assert [json.loads(line)["namespace"] for line in both] == ["default", "shop"]


@pytest.mark.parametrize("command", ["services", "maps dump lb_names lb_descs"])
def test_on_a_narrow_terminal_all_of_it_is_shown(maps, screen, command):
    check_narrow(screen, main, *command.split())
