# SPDX-License-Identifier: Apache-2.0
"""The lease: one process has it, and another one soon after that is gone."""

import pytest

from ebpflb.errors import SourceError
from ebpflb.gateway.lease import DURATION_SECONDS, RENEW_SECONDS, RETRY_SECONDS, Lease
from ebpflb.source.api import ConflictError
from tests.unit.gateway.fake_api import FakeApi

PATH = "/apis/coordination.k8s.io/v1/namespaces/own/leases/lease"


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def api():
    return FakeApi()


def lease(api, clock, holder):
    return Lease(api, "own", "lease", holder, clock)


def test_the_first_gets_it_and_keeps_it(api, clock):
    one, two = lease(api, clock, "one"), lease(api, clock, "two")
    for _ in range(20):
        assert one.holds()
        assert not two.holds()
        clock.now += RETRY_SECONDS
    spec = api.objects[PATH]["spec"]
    assert spec["holderIdentity"] == "one"
    assert spec["leaseTransitions"] == 0
    assert spec["leaseDurationSeconds"] == DURATION_SECONDS


def test_it_is_asked_for_no_more_often_than_needed(api, clock):
    one = lease(api, clock, "one")
    assert one.holds()
    before = len(api.written)
    clock.now += RETRY_SECONDS / 2
    assert one.holds()
    assert len(api.written) == before


def test_another_one_gets_it_when_it_has_not_changed_for_its_duration(api, clock):
    one, two = lease(api, clock, "one"), lease(api, clock, "two")
    assert one.holds()
    assert not two.holds()
    clock.now += DURATION_SECONDS - 1
    assert not two.holds()
    clock.now += RETRY_SECONDS
    assert two.holds()
    assert not one.holds()
    assert api.objects[PATH]["spec"]["leaseTransitions"] == 1


def test_who_cannot_renew_stops_before_another_one_may_begin(api, clock, caplog):
    one = lease(api, clock, "one")
    assert one.holds()
    api.refusals[PATH] = SourceError("the API server is gone")
    clock.now += RENEW_SECONDS - 1
    assert one.holds()
    assert "cannot renew the lease" in caplog.text
    clock.now += 2
    assert not one.holds()
    assert RENEW_SECONDS < DURATION_SECONDS
    api.refusals.clear()
    clock.now += RETRY_SECONDS
    assert one.holds()


def test_of_two_at_once_one_gets_it(api, clock):
    api.refusals[PATH] = ConflictError("there already")
    assert not lease(api, clock, "one").holds()
    api.refusals.clear()
    assert lease(api, clock, "two").holds()
    clock.now += DURATION_SECONDS
    late = lease(api, clock, "late")
    assert not late.holds()
    clock.now += DURATION_SECONDS + 1
    api.refusals[PATH] = ConflictError("another one by now")
    assert not late.holds()


def test_it_is_let_go_at_once(api, clock, caplog):
    one, two = lease(api, clock, "one"), lease(api, clock, "two")
    assert one.holds()
    assert not two.holds()
    two.release()
    assert api.objects[PATH]["spec"]["holderIdentity"] == "one"
    one.release()
    clock.now += RETRY_SECONDS
    assert two.holds()
    api.refusals[PATH] = SourceError("the API server is gone")
    two.release()
    assert "cannot release the lease" in caplog.text
