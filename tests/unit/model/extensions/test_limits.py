# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.model.address import Protocol
from ebpflb.model.changes import Changes
from ebpflb.model.explain import differences, encode_frontend
from ebpflb.model.extensions.limits import (
    FASTEST,
    NO_LIMITS,
    Limits,
    OpenLimit,
    RateLimit,
    rate_limit,
    rate_limit_of,
)
from ebpflb.model.plan import HEALTH_CHECK, Frontend, plan_service
from ebpflb.model.service import Service, TrafficPolicy
from tests.builders import NODE, address, node, port_name, service, service_port

PER_ENDPOINT, PER_CLIENT = OpenLimit(100, drops=True), OpenLimit(20)
NEW = rate_limit(10, per_minute=False, burst=50, drops=True)


def planned(**limits: OpenLimit | RateLimit | None) -> Frontend:
    return plan_service(service("web", **limits), (), node())[0]


def test_every_protocol_has_them():
    ports = [service_port(name=port_name(each.name, protocol=each)) for each in Protocol]
    limited = service("web", *ports, max_open_per_client=PER_CLIENT, new_per_client=NEW)
    found = {each.key.protocol: each.limits for each in plan_service(limited, (), node())}
    assert found == dict.fromkeys(Protocol, Limits(None, PER_CLIENT, NEW))


def test_the_health_check_node_port_has_none():
    port = service_port(
        load_balancer_ips=(address("192.0.2.1"),),
        health_check_node_port=30000,
        external_policy=TrafficPolicy.LOCAL,
    )
    here = node(addresses=("10.0.0.1",))
    found = plan_service(service("web", port, max_open=PER_ENDPOINT), (), here)
    by_name = {each.service.port == HEALTH_CHECK: each.limits for each in found}
    assert by_name == {False: Limits(PER_ENDPOINT), True: NO_LIMITS}


@pytest.mark.parametrize(
    ("limits", "counts_open", "are_of_clients"),
    [
        (NO_LIMITS, False, False),
        (Limits(per_endpoint=PER_ENDPOINT), True, False),
        (Limits(per_client=PER_CLIENT), True, True),
        (Limits(new_per_client=NEW), False, True),
    ],
)
def test_open_connections_are_counted_where_that_is_needed(
    limits: Limits, counts_open: bool, are_of_clients: bool
):
    endpoint, client, new = limits
    found = planned(max_open=endpoint, max_open_per_client=client, new_per_client=new)
    assert found.limits == limits
    assert found.counts_open is counts_open
    assert limits.are_of_clients is are_of_clients


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (NO_LIMITS, ""),
        (Limits(OpenLimit(100)), "100 open per endpoint"),
        (
            Limits(PER_ENDPOINT, PER_CLIENT, NEW),
            "100 open per endpoint (dropped beyond), 20 open per client, "
            "10/s new per client (bursts of 50, dropped beyond)",
        ),
    ],
)
def test_they_are_told_in_words(limits: Limits, told: str):
    assert str(limits) == told
    endpoint, client, new = limits
    found = planned(max_open=endpoint, max_open_per_client=client, new_per_client=new)
    assert encode_frontend(found)["limits"] == told


def test_a_difference_between_kernel_and_model_is_told():
    kernel, model = planned(max_open=OpenLimit(5)), planned()
    assert differences(kernel, model) == ["limits: kernel 5 open per endpoint, model none"]


def test_a_rate_is_found_again_from_its_interval():
    for number in range(1, FASTEST + 1):
        for per_minute in (False, True):
            limit = rate_limit(number, per_minute=per_minute, burst=number % 7, drops=True)
            assert rate_limit_of(limit.interval, limit.ahead, drops=True) == limit


@pytest.mark.parametrize(("interval", "rate"), [(1 << 63, "1/min"), (3, "333333333/s")])
def test_an_interval_that_no_rate_has_is_told_roughly(interval: int, rate: str):
    assert rate_limit_of(interval, 0, drops=False).rate == rate


def test_a_burst_is_how_many_may_come_at_once():
    limit = rate_limit(10, per_minute=False, burst=3)
    ahead = [number * limit.interval for number in range(5)]
    assert [each <= limit.ahead for each in ahead] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("number", "per_minute", "burst"), [(10, False, 10), (30, True, 1), (150, True, 2)]
)
def test_the_usual_burst_is_that_of_one_second(number: int, per_minute: bool, burst: int):
    assert rate_limit(number, per_minute=per_minute).burst == burst


def changes_of(limited: Service) -> Changes:
    changes = Changes(NODE)
    changes.set(limited)
    return changes


def test_they_always_have_an_effect():
    limited = service("web", max_open=PER_ENDPOINT, new_per_client=NEW)
    assert not list(changes_of(limited).problems())
