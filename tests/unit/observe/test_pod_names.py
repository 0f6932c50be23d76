# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.model.objects.kinds import key_of
from ebpflb.model.pod import NOBODY, NamedPod, Pod
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.pod_names import PodNames
from ebpflb.source.interface import SourceEvent
from tests.builders import address, endpoint, endpoint_slice

HERE, ALSO_HERE = address("10.1.0.1"), address("fd00::1")
BACKUP = Pod("jobs", "backup-1", (HERE, ALSO_HERE), workload="CronJob/backup")
NAMED = NamedPod("jobs/backup-1", "CronJob/backup")


@pytest.fixture
def locations() -> EndpointLocations:
    return EndpointLocations("node-a")


@pytest.fixture
def names(locations: EndpointLocations) -> PodNames:
    return PodNames(locations)


def note(names, *items, gone=()):
    names.note(SourceEvent(items, tuple(map(key_of, gone)), {}, initial=False))


def test_a_pod_behind_no_service_has_a_name(names):
    note(names, BACKUP)
    assert (names.at(HERE), names.at(ALSO_HERE)) == (NAMED, NAMED)
    assert names.at(address("10.1.0.2")) == NOBODY


def test_an_address_stays_known_until_it_is_another_pods(names):
    note(names, BACKUP)
    note(names, gone=[BACKUP])
    assert names.at(HERE) == NAMED
    note(names, Pod("jobs", "other", (HERE,)))
    assert names.at(HERE) == NamedPod("jobs/other")
    assert names.at(ALSO_HERE) == NAMED


def test_a_pod_that_has_finished_may_go_after_its_address_has_a_new_owner(names):
    note(names, BACKUP)
    note(names, Pod("jobs", "backup-1", workload="CronJob/backup"))
    assert names.at(HERE) == NAMED
    note(names, Pod("jobs", "other", (HERE,)))
    note(names, gone=[BACKUP])
    assert names.at(HERE) == NamedPod("jobs/other")


def test_two_pods_with_one_address_are_the_later_one(names):
    other = Pod("jobs", "other", (HERE,))
    note(names, BACKUP, other)
    note(names, gone=[BACKUP])
    assert names.at(HERE) == NamedPod("jobs/other")


def test_a_pod_that_is_gone_gives_way_to_an_endpoint(names, locations):
    note(names, BACKUP)
    note(names, gone=[BACKUP])
    piece = endpoint_slice("web-x", endpoint("10.1.0.1", pod="default/web-1"))
    locations.note(SourceEvent((piece,), (), {}, initial=False))
    assert names.at(HERE) == NamedPod("default/web-1")


def test_a_pod_keeps_its_workload_when_its_endpoint_goes_later_or_earlier(names, locations):
    piece = endpoint_slice("web-x", endpoint("10.1.0.1", pod="jobs/backup-1"))
    there = SourceEvent((piece,), (), {}, initial=False)
    gone = SourceEvent((), (key_of(piece),), {}, initial=False)
    note(names, BACKUP)
    locations.note(there)
    note(names, gone=[BACKUP])
    assert names.at(HERE) == NAMED
    locations.note(gone)
    assert names.at(HERE) == NAMED
    note(names, BACKUP)
    locations.note(there)
    locations.note(gone)
    note(names, gone=[BACKUP])
    assert names.at(HERE) == NAMED


def test_only_the_last_pods_are_remembered(names):
    pods = [Pod("jobs", f"p{n}", (address(f"10.2.{n >> 8}.{n & 255}"),)) for n in range(1100)]
    note(names, *pods)
    note(names, gone=pods)
    assert names.at(pods[75].addresses[0]) == NOBODY
    assert names.at(pods[76].addresses[0]) == NamedPod("jobs/p76")
