# SPDX-License-Identifier: Apache-2.0
"""Services that use their backup: in the maps, in metrics, in the log and as Events."""

from dataclasses import replace

import pytest

from ebpflb.dataplane.layout.records import (
    USABLE,
    BackendRecord,
    pack_index,
    pack_open,
    unpack_name,
)
from ebpflb.model.address import Protocol
from ebpflb.model.backup.spill import QUIET_SECONDS
from tests.builders import endpoint, endpoint_slice, service, service_port
from tests.unit.agent.conftest import Bench
from tests.unit.agent.node import MAP_ERROR

LIMITED = service("web", backup="static", spill_at=10)
STATIC = service("static", service_port("10.96.0.20"))
OWN = endpoint_slice("web-1", endpoint("10.1.0.1"))
NOTHING = endpoint_slice("web-1")
LENT = endpoint_slice("static-1", endpoint("10.2.0.1"), service="static")
ON_BACKUP = "ebpflb_services_on_backup"


@pytest.fixture
def backed(bench: Bench) -> Bench:
    bench.say(LIMITED, STATIC, OWN, LENT)
    bench.turn()
    return bench


def put(bench: Bench, *numbers: int) -> None:
    """Open connections of the Service's backends, its own first."""
    maps = bench.node.maps
    found = []
    for index, value in maps["lb_backends"].items():
        record = BackendRecord.unpack(value)
        name = maps["lb_names"].lookup(pack_index(record.service))
        if record.flags & USABLE and name and unpack_name(name, Protocol.TCP).service == "web":
            found.append((record.socket, index))
    for (_, index), number in zip(sorted(found), numbers, strict=True):
        maps["lb_open"].update(index, pack_open(number))


def offered(bench: Bench) -> list[str]:
    return bench.node.served()["web"]


def test_a_service_without_endpoints_is_told_once_and_so_is_its_end(backed: Bench, caplog):
    caplog.set_level("INFO")
    assert backed.samples()[ON_BACKUP] == 0
    backed.say(NOTHING)
    assert backed.turn() == ["apply default/web"]
    assert offered(backed) == ["10.2.0.1"]
    assert backed.samples()[ON_BACKUP] == 1
    told = "no endpoint of its own is usable: new connections go to its backup default/static"
    (announced,) = backed.announced
    assert (str(announced.about), announced.reason) == ("Service default/web", "OnBackup")
    assert announced.note == f"on node-a, {told}"
    assert told in caplog.messages
    backed.say(OWN)
    assert backed.turn() == ["apply default/web"]
    assert (offered(backed), backed.samples()[ON_BACKUP]) == (["10.1.0.1"], 0)
    assert "on its own endpoints alone again" in caplog.messages
    assert len(backed.announced) == 1


def test_a_service_spills_over_within_a_second_and_ends_after_a_while(backed: Bench, caplog):
    caplog.set_level("INFO")
    put(backed, 9)
    assert "apply default/web" not in backed.turn(1)
    put(backed, 10)
    assert "apply default/web" in backed.turn(1)
    assert offered(backed) == ["10.1.0.1", "10.2.0.1"]
    (announced,) = backed.announced
    assert announced.note == (
        "on node-a, 10 or more connections are open: new ones also go to its backup default/static"
    )
    put(backed, 4, 3)
    backed.turn(1)
    backed.turn(QUIET_SECONDS)
    assert offered(backed) == ["10.1.0.1"]
    assert "on its own endpoints alone again" in caplog.messages


def test_what_both_services_have_open_counts(backed: Bench):
    put(backed, 10)
    backed.turn(1)
    put(backed, 4, 4)
    for _ in range(2):
        backed.turn(QUIET_SECONDS)
    assert offered(backed) == ["10.1.0.1", "10.2.0.1"]


def test_nothing_is_counted_without_the_annotation(bench: Bench):
    bench.say(service("web", backup="static"), STATIC, OWN, LENT)
    bench.turn()
    assert "open" not in bench.turn(100)
    bench.say(LIMITED)
    bench.turn()
    assert "open" in bench.turn(1)


def test_it_ends_at_once_without_the_annotation(backed: Bench):
    put(backed, 10)
    backed.turn(1)
    backed.say(service("web", backup="static"))
    backed.turn()
    assert offered(backed) == ["10.1.0.1"]
    backed.turn(1)
    assert "open" not in backed.turn(100)


def test_maps_that_cannot_be_read_are_tried_again(backed: Bench):
    put(backed, 10)
    backed.node.failures["open"] = [MAP_ERROR]
    backed.turn(1)
    assert offered(backed) == ["10.1.0.1"]
    for _ in range(3):
        backed.turn(2)
    assert offered(backed) == ["10.1.0.1", "10.2.0.1"]


def test_a_service_that_is_gone_is_not_on_its_backup(backed: Bench):
    backed.say(NOTHING)
    backed.turn()
    backed.say(gone=(LIMITED,))
    backed.turn()
    assert backed.samples()[ON_BACKUP] == 0


def test_a_backup_that_does_not_allow_it_is_a_problem_of_the_service(bench: Bench):
    bench.say(service("web", backup="ops/static"), replace(OWN, service="web"))
    bench.turn()
    assert bench.samples()["ebpflb_services_misconfigured"] == 1
    (announced,) = bench.announced
    assert announced.reason == "InvalidAnnotation"
    assert "no Service ops/static with a ClusterIP whose annotation" in announced.note
