# SPDX-License-Identifier: Apache-2.0
"""The agent's replies at health check node ports, and its report of ports that it cannot serve."""

import pytest

from ebpflb.agent.loop import LISTEN_SECONDS, Wakeup
from ebpflb.model.address import Family
from ebpflb.model.health_check import HealthCheck
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.model.service import ServiceName
from ebpflb.source.interface import Announcement
from tests.builders import NODE, endpoint, endpoint_slice, service, service_port, terminating
from tests.unit.agent.node import MAP_ERROR

PORT = 32000
NAME = ServiceName("default", "web")
LOCAL = service("web", service_port(health_check_node_port=PORT))
SLICE = endpoint_slice("web-1", endpoint())
TAKEN = f"0.0.0.0:{PORT}: Address already in use"
NOTE = f"node {NODE} failed to start healthcheck default/web on {TAKEN}"


def check(count: int) -> dict[ServiceName, HealthCheck]:
    return {NAME: HealthCheck(PORT, {Family.IPV4: count})}


@pytest.fixture
def served(bench):
    """An agent with one pod behind a Service whose external policy is Local."""
    bench.say(LOCAL, SLICE)
    bench.turn()
    return bench


@pytest.fixture
def clashing(bench):
    """Another process has the port."""
    bench.health_check_errors[NAME] = TAKEN
    bench.say(LOCAL, SLICE)
    bench.turn()
    return bench


def test_nothing_is_answered_before_the_first_sync(bench):
    bench.node.failures["start"] = [MAP_ERROR]
    bench.say(LOCAL, SLICE)
    bench.turn()
    assert bench.health_checks == {}
    bench.turn(0.2)
    assert bench.health_checks == check(1)


def test_each_sync_starts_counting_again(served):
    served.say(endpoint_slice("web-1", terminating()))
    served.turn()
    assert served.health_checks == check(0)
    served.say(endpoint_slice("web-1", endpoint(), endpoint("10.1.0.2")))
    served.turn()
    assert served.health_checks == check(2)
    served.say(gone=(SLICE,))
    served.turn()
    assert served.health_checks == check(0)


def test_a_sync_of_other_services_changes_nothing(served):
    served.say(service("other", service_port("10.96.0.99")))
    served.turn()
    assert served.health_checks == check(1)


def test_a_service_that_is_gone_or_no_longer_local_is_not_answered(served):
    served.say(service("web"))
    served.turn()
    assert served.health_checks == {}
    served.say(LOCAL)
    served.turn()
    assert served.health_checks == check(1)
    served.say(gone=(LOCAL,))
    served.turn()
    assert served.health_checks == {}


def test_a_failed_sync_changes_nothing_until_it_is_repeated(served):
    served.node.failures["apply default/web"] = [MAP_ERROR]
    served.say(gone=(SLICE,))
    served.turn()
    assert served.health_checks == check(1)
    served.turn(0.2)
    assert served.health_checks == check(0)


def test_a_port_in_use_is_reported_once_at_the_service(clashing, caplog):
    key = ObjectKey(Kind.SERVICE, "default", "web")
    expected = Announcement(key, "FailedToStartServiceHealthcheck", NOTE)
    clashing.say(endpoint_slice("web-1"))
    clashing.turn()
    clashing.turn(LISTEN_SECONDS)
    assert clashing.announced == [expected]
    assert expected.warning
    assert [each.message for each in caplog.get_records("setup")] == [NOTE]
    assert caplog.messages == []
    assert clashing.report()["health_check_errors"] == {"default/web": TAKEN}
    assert clashing.samples()["ebpflb_health_check_errors"] == 1


def test_a_port_in_use_is_tried_again_without_any_change(clashing, caplog):
    caplog.set_level("INFO")
    clashing.health_check_errors.clear()
    clashing.turn(LISTEN_SECONDS - 0.1)
    assert clashing.report()["health_check_errors"]
    clashing.turn(0.1)
    assert clashing.report()["health_check_errors"] == {}
    assert clashing.samples()["ebpflb_health_check_errors"] == 0
    assert caplog.messages == ["health check answered again or removed"]


def test_a_change_of_the_network_is_a_reason_to_try_again(clashing):
    clashing.health_check_errors.clear()
    clashing.agent.tell(Wakeup.NETWORK)
    clashing.turn()
    assert clashing.report()["health_check_errors"] == {}


def test_a_service_that_cannot_be_answered_is_served(clashing):
    assert clashing.node.served() == {"web": ["10.1.0.1"]}
    assert clashing.report()["in_sync"] is True
