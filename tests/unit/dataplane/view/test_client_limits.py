# SPDX-License-Identifier: Apache-2.0
"""Which clients have come to their limits, and what `top` says of them."""

from dataclasses import replace

import pytest

from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.dataplane.layout.records import pack_open
from ebpflb.dataplane.layout.structs import LbAddr, LbClientKey, LbClientUse
from ebpflb.dataplane.services.sync import Sync
from ebpflb.dataplane.view.client_limits import LimitedClient, limited_clients
from ebpflb.dataplane.view.rates import ServiceTraffic, TrafficSample, TrafficSampler, rates
from ebpflb.dataplane.view.snapshot import read_limits
from ebpflb.model.address import parse_address
from ebpflb.model.extensions.limits import Limits, OpenLimit, rate_limit
from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendType
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import backends, by_service, frontend, named

NOW = 1_000_000_000_000
# Twice at once, and then each 100 ms.
RATE = rate_limit(10, per_minute=False, burst=2)
LIMITS = Limits(OpenLimit(5), OpenLimit(3), RATE)
OPEN, NEW = DropReason.LB_DROP_CLIENT_OPEN, DropReason.LB_DROP_CLIENT_NEW
PAIR = backends("10.1.0.1", "10.1.0.2")


@pytest.fixture
def maps():
    made = memory_maps()
    limited = frontend(choice=PAIR, limits=LIMITS, counts_open=True)
    other = frontend("10.96.0.2", PAIR, service=named("other"))
    Sync(made, quiesce=lambda: None).resync(by_service(limited, other))
    return made


def identity(maps) -> int:
    (found,) = read_limits(maps)
    return found


def use(maps, text, service=None, **fields):
    client = LbAddr.of(parse_address(text))
    key = LbClientKey(service=service or identity(maps), client=client)
    maps["lb_client_uses"].update(bytes(key), bytes(LbClientUse(**fields)))


def found(maps):
    return limited_clients(maps, lambda: NOW).get(identity(maps), ())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"open": 2}, None),
        ({"open": 3}, OPEN),
        ({"due": NOW + RATE.ahead}, None),
        ({"due": NOW + RATE.ahead + 1}, NEW),
        ({"open": 3, "due": NOW + RATE.ahead + 1}, OPEN),
    ],
)
def test_a_client_is_named_if_the_next_connection_is_one_too_many(maps, fields, reason):
    use(maps, "198.51.100.9", **fields)
    wanted = (LimitedClient(parse_address("198.51.100.9"), reason),) if reason else ()
    assert found(maps) == wanted


def test_clients_of_services_without_limits_are_not_named(maps):
    use(maps, "198.51.100.9", service=identity(maps) % 2 + 1, open=9)
    assert limited_clients(maps) == {}
    without = memory_maps()
    assert limited_clients(without) == {}
    older = {name: each for name, each in without.items() if name != "lb_limits"}
    assert limited_clients(older) == {}


def test_a_sample_has_them_and_the_full_endpoints(maps):
    use(maps, "198.51.100.9", open=3)
    maps["lb_open"].update(bytes(4), pack_open(5))
    services = TrafficSampler(maps).sample().services
    of = {name.service: (each.full, len(each.limited)) for name, each in services.items()}
    assert of["other"] == (0, 0)
    assert of["web"] in ((1, 1), (0, 1))
    for number in range(4):
        maps["lb_open"].update(number.to_bytes(4, "little"), pack_open(5))
    assert TrafficSampler(maps).sample().services[named("web")].full == 2


def troubles(refused, limited, full=0, pods=None):
    port = named("web")
    before = ServiceTraffic({FrontendType.CLUSTER_IP: Counts()}, {})
    counts = {FrontendType.CLUSTER_IP: Counts(refused=refused)}
    clients = tuple(LimitedClient(parse_address(text), NEW) for text in limited)
    after = replace(before, by_type=counts, limited=clients, full=full)
    samples = TrafficSample(0, {port: before}), TrafficSample(1, {port: after})
    (found,) = rates(*samples, pods or {})
    return [each for each in found.troubles if each != "no endpoint"]


def test_clients_are_told_while_connections_are_refused(maps):
    assert troubles(0, ["198.51.100.9"]) == []
    assert troubles(1, ["198.51.100.9"]) == ["198.51.100.9 over its limit (client_new)"]
    assert troubles(1, ["10.1.0.9"], pods={"10.1.0.9": "shop/noisy"}) == [
        "shop/noisy over its limit (client_new)"
    ]
    assert troubles(1, ["2001:db8::"]) == ["2001:db8::/64 over its limit (client_new)"]
    assert troubles(1, [f"198.51.100.{each}" for each in range(4)])[3:] == [
        "1 more client over limits"
    ]
    assert troubles(1, [f"198.51.100.{each}" for each in range(9)])[3:] == [
        "6 more clients over limits"
    ]


def test_full_endpoints_are_a_trouble():
    assert troubles(0, [], full=1) == ["1 of 0 endpoints full"]
