# SPDX-License-Identifier: Apache-2.0
import threading

import pytest
from msgspec import convert

from ebpflb.errors import ClusterError
from ebpflb.kubectl.asking import NO_AGENT
from ebpflb.kubectl.ui.active import UNKNOWN_YET, ActiveConnections, ActiveNow
from ebpflb.kubectl.ui.aside import Heard
from ebpflb.model.flow import ServiceRate
from tests.unit.kubectl.answers import backend, service


def rates(*made):
    return [convert(each, ServiceRate) for each in made]


@pytest.fixture
def look():
    """What is known once the thread that asks has ended."""

    def wait(active):
        active.read()
        for each in threading.enumerate():
            if each.name == "ebpflb-active":
                each.join(60)
        return active.read()

    return wait


def test_ports_of_a_service_add_up(look):
    found = rates(service(backend("10.1.0.1")), service(backend("10.1.0.2"), name="web", port="s"))
    heard = Heard(found, (), {NO_AGENT: {"c"}})
    assert look(ActiveConnections(lambda: heard)) == ActiveNow({"default/web": 2}, "")


def test_a_node_without_an_answer_is_named(look):
    heard = Heard(rates(service(backend("10.1.0.1"))), (), {"is down": {"node2"}})
    assert look(ActiveConnections(lambda: heard)).why == "without node2, no answer"


def test_it_is_asked_again_after_a_while(look):
    now, asked = [0.0], []

    def ask():
        asked.append(now[0])
        return Heard([])

    active = ActiveConnections(ask, lambda: now[0])
    for moment in (0.0, 29.0, 31.0):
        now[0] = moment
        look(active)
    assert asked == [0.0, 31.0]


def test_slow_answers_are_awaited_by_nobody():
    asked, go = [], threading.Event()

    def ask():
        asked.append(1)
        go.wait(60)
        return Heard([])

    active = ActiveConnections(ask)
    assert [active.read() for _ in range(3)] == [UNKNOWN_YET] * 3
    go.set()
    assert asked in ([], [1])


def test_what_cannot_be_asked_is_told(look):
    def ask():
        raise ClusterError("RBAC\nforbids it")

    assert look(ActiveConnections(ask)) == ActiveNow(None, "RBAC forbids it")


@pytest.mark.parametrize(
    ("group", "active"),
    [
        ("service:shop/web", 5),
        ("service:shop/gone", None),
        ("service:10.96.0.1:80/TCP", None),
        ("namespace:shop", 8),
        ("namespace:no Service", 0),
        ("others:others", None),
        ("", None),
    ],
)
def test_active_connections_of_a_group(group, active):
    assert ActiveNow({"shop/web": 5, "shop/api": 3, "pay/api": 9}).of(group) == active
    assert UNKNOWN_YET.of(group) is None
