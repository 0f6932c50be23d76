# SPDX-License-Identifier: Apache-2.0
"""When the loop destroys UDP sockets whose backend no longer serves."""

import pytest

from ebpflb.agent.interface import GRACE_SECONDS, EndedSockets
from ebpflb.errors import ProbeError
from ebpflb.model.address import Family
from tests.builders import endpoint, endpoint_slice, service
from tests.unit.agent.conftest import Bench

PAUSE = 1.0
DURATION = "kubeproxy_conntrack_reconciler_sync_duration_seconds_count"
DELETED = "kubeproxy_conntrack_reconciler_deleted_entries_total"


@pytest.fixture
def served(bench: Bench) -> Bench:
    bench.say(service("web"), endpoint_slice("web-1", endpoint("10.1.0.1")))
    bench.turn()
    return bench


def end_backend(bench: Bench, number: int = 2) -> None:
    bench.node.ended_udp = True
    bench.say(endpoint_slice("web-1", endpoint(f"10.1.0.{number}")))


def sample(bench: Bench, name: str, family: str) -> float | None:
    return bench.metrics.registry.get_sample_value(name, {"ip_family": family})


def test_sockets_are_ended_right_after_the_sync(served: Bench):
    end_backend(served)
    assert served.turn() == ["apply default/web"]
    assert served.turn() == ["sockets"]
    assert sample(served, DURATION, "IPv4") == 1


def test_a_sync_without_such_an_end_asks_for_nothing(served: Bench):
    served.say(endpoint_slice("web-1", endpoint("10.1.0.2")))
    served.turn()
    assert "sockets" not in served.turn() + served.turn(PAUSE) + served.turn(GRACE_SECONDS)


def test_ends_that_follow_each_other_quickly_are_one_look(served: Bench):
    end_backend(served, 2)
    served.turn()
    assert served.turn() == ["sockets"]
    end_backend(served, 3)
    served.turn()
    end_backend(served, 4)
    assert "sockets" not in served.turn()
    assert "sockets" in served.turn(PAUSE)
    assert "sockets" not in served.turn(PAUSE)


def test_a_look_that_could_not_see_everything_is_repeated(served: Bench):
    served.node.ended = [EndedSockets({Family.IPV6: 2}, pending=True)]
    end_backend(served)
    served.turn()
    served.turn()
    assert "sockets" in served.turn(GRACE_SECONDS)
    assert "sockets" not in served.turn(GRACE_SECONDS)
    assert sample(served, DELETED, "IPv6") == 2


def test_a_look_that_failed_is_repeated_until_it_works_and_hinders_nothing(
    served: Bench, caplog: pytest.LogCaptureFixture
):
    served.node.failures["sockets"] = [ProbeError("no netlink"), ProbeError("no netlink")]
    end_backend(served)
    served.turn()
    assert served.turn() == ["sockets"]
    served.say(endpoint_slice("web-1", endpoint("10.1.0.3")))
    assert served.turn() == ["apply default/web"]
    assert "sockets" in served.turn(1)
    assert "sockets" not in served.turn(1)
    assert "sockets" in served.turn(1)
    assert "sockets" not in served.turn(10)
    assert caplog.text.count("no netlink") == 1
    assert served.report()["in_sync"] is True


def test_what_the_kernel_lacks_is_reported(bench: Bench):
    bench.agent.status.set_lacks({"ending UDP sockets": "not there: they stay"})
    assert bench.report()["kernel_lacks"] == {"ending UDP sockets": "not there: they stay"}
