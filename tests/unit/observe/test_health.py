# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from ebpflb.observe.health import PATIENCE_SECONDS, READ_PATIENCE_SECONDS, Health

NOW = "2026-11-21T10:00:00.500000Z"
WALL = 1795255200.5
NEVER = "0001-01-01T00:00:00Z"


class Clock:
    def __init__(self):
        self.monotonic = 1000.0
        self.wall = WALL

    def pass_by(self, seconds):
        self.monotonic += seconds
        self.wall += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def health(clock):
    return Health(("IPv4", "IPv6"), monotonic=lambda: clock.monotonic, wall=lambda: clock.wall)


def test_starting_up_and_idle_are_healthy(health, clock):
    assert health.is_alive()
    clock.pass_by(10 * PATIENCE_SECONDS)
    assert health.is_alive()


def test_a_change_that_waits_too_long_is_unhealthy_until_a_sync_succeeds(health, clock):
    health.queued()
    clock.pass_by(PATIENCE_SECONDS - 1)
    assert health.is_alive()
    clock.pass_by(1)
    assert not health.is_alive()
    health.synced()
    assert health.is_alive()


def test_each_sync_is_reported_with_its_time(clock):
    told: list[float] = []
    health = Health(("IPv4",), wall=lambda: clock.wall, on_sync=told.append)
    health.synced()
    clock.pass_by(5)
    health.synced()
    assert told == [WALL, WALL + 5] == [told[0], health.last_sync]


def test_the_oldest_change_counts(health, clock):
    health.queued()
    clock.pass_by(PATIENCE_SECONDS - 1)
    health.queued()
    clock.pass_by(1)
    assert not health.is_alive()


def test_who_has_read_nothing_for_a_minute_is_alive_and_not_ready(health, clock):
    health.set_readable(False)
    assert health.unready() == "not in sync yet"
    health.synced()
    clock.pass_by(READ_PATIENCE_SECONDS - 1)
    health.set_readable(False)
    assert health.unready() == ""
    clock.pass_by(1)
    assert "cannot be read" in health.unready()
    assert health.readiness()[0]
    assert health.liveness()[0]
    health.set_readable(True)
    assert (health.unready(), health.unread_seconds()) == ("", 0)


def test_a_change_after_a_success_has_its_own_time(health, clock):
    health.queued()
    health.synced()
    clock.pass_by(PATIENCE_SECONDS)
    health.queued()
    assert health.is_alive()


def test_bodies_of_a_good_node(health, clock):
    health.synced()
    clock.pass_by(3600)
    good, body = health.readiness()
    later = "2026-11-21T11:00:00.500000Z"
    family = {"lastUpdated": NOW, "healthy": True}
    expected = {
        "lastUpdated": later,
        "currentTime": later,
        "nodeEligible": True,
        "healthy": True,
        "status": {"IPv4": family, "IPv6": family},
    }
    assert good
    assert json.loads(body) == expected
    assert list(json.loads(body)) == list(expected)
    good, body = health.liveness()
    del expected["nodeEligible"]
    assert good
    assert json.loads(body) == expected


def test_a_503_shows_when_the_last_sync_was(health, clock):
    health.synced()
    health.queued()
    clock.pass_by(PATIENCE_SECONDS)
    good, body = health.liveness()
    shown = json.loads(body)
    assert not good
    assert shown["lastUpdated"] == NOW
    assert shown["healthy"] is False
    assert shown["status"]["IPv6"] == {"lastUpdated": NOW, "healthy": False}


def test_before_the_first_sync_there_is_no_last_one(health, clock):
    health.queued()
    clock.pass_by(PATIENCE_SECONDS)
    assert json.loads(health.readiness()[1])["lastUpdated"] == NEVER
    assert health.last_sync is None


def test_an_ineligible_node_is_alive_but_not_ready(health):
    health.synced()
    health.set_eligible(False)
    good, body = health.readiness()
    assert not good
    assert json.loads(body)["nodeEligible"] is False
    assert json.loads(body)["healthy"] is True
    assert health.liveness()[0]
    assert not health.readiness()[0]


def test_without_ipv6_there_is_one_family():
    body = json.loads(Health(("IPv4",)).liveness()[1])
    assert list(body["status"]) == ["IPv4"]


def test_idle_means_that_nothing_waits(health):
    assert health.is_idle()
    health.queued()
    assert not health.is_idle()
    health.synced()
    assert health.is_idle()
