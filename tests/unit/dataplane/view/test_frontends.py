# SPDX-License-Identifier: Apache-2.0
from sys import byteorder

import pytest

from ebpflb.dataplane.layout.enums import CtState, Direction
from ebpflb.dataplane.layout.records import pack_open
from ebpflb.dataplane.layout.structs import LbConntrack, LbCounts, LbSocket, LbSocketKey
from ebpflb.dataplane.services.sync import Sync
from ebpflb.dataplane.view.snapshot import BackendInUse, read_frontends
from ebpflb.model import flow as model
from ebpflb.model.address import WILDCARD, Family, Protocol, format_address
from ebpflb.model.extensions.limits import Limits, OpenLimit
from ebpflb.model.plan import Choice, Frontend, FrontendKey, FrontendType, IfEmpty
from ebpflb.model.service import ServiceName, TrafficPolicy
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import (
    ALLOWED,
    NOTHING,
    backends,
    by_service,
    frontend,
    key,
    named,
)


@pytest.fixture
def maps():
    return memory_maps()


@pytest.fixture
def sync(maps):
    return Sync(maps, quiesce=lambda: None)


def address_of(each: Frontend) -> str:
    return format_address(each.key.address)


def index(number: int) -> bytes:
    return number.to_bytes(4, byteorder)


def in_use(text: str, *, usable: bool = True, active: int = 0, connections: int = 0):
    (backend,) = backends(text).backends
    return BackendInUse(backend, usable, active, model.Counts(connections))


def count(maps, name, place, *numbers):
    """Count the same on each of two CPUs."""
    maps[name].update(index(place), bytes(LbCounts(*numbers)) * 2)


def add_flow(maps, table, port, **fields):
    entry = LbConntrack(direction=Direction.LB_DIR_ORIGINAL, **fields)
    maps[table].update(port.to_bytes(40, "big"), bytes(entry))


def add_socket(maps, cookie, direction, **fields):
    maps["lb_sockets"].update(
        bytes(LbSocketKey(cookie=cookie, direction=direction)), bytes(LbSocket(**fields))
    )


def test_empty_maps_offer_nothing(maps):
    assert read_frontends(maps) == []


def test_a_frontend_with_all_that_can_be_said_of_it(maps, sync):
    both = backends("10.1.0.1", "10.1.0.2")
    here = backends("10.1.0.3", local=True, terminating=True)
    wanted = frontend(
        choice=both,
        others=here,
        service=named("web", "http"),
        internal_policy=TrafficPolicy.LOCAL,
        affinity_timeout=60,
        allowed_sources=ALLOWED,
    )
    sync.resync(by_service(wanted))
    count(maps, "lb_count_front", 0, 5, 6, 7)
    (found,) = read_frontends(maps)
    assert found.frontend == wanted
    assert found.counts[:3] == (10, 12, 14)
    assert set(found.backends) == {*both.backends, *here.backends}
    assert found.draining == ()


def test_what_is_decoded_is_what_was_planned(maps, sync):
    """For each field that a descriptor has."""
    wanted = {
        frontend(),
        frontend("10.96.0.2", masquerade=True, external_policy=TrafficPolicy.LOCAL),
        frontend("fd00::1", backends("fd00:1::1")),
        frontend("192.0.2.2", type=FrontendType.LOAD_BALANCER, dsr=True),
        frontend("192.0.2.1", type=FrontendType.EXTERNAL_IP, allowed_sources=ALLOWED[:1]),
        frontend("10.96.0.3", service=named("limited"), limits=Limits(OpenLimit(7, drops=True))),
    }
    sync.resync(by_service(*wanted))
    assert {each.frontend for each in read_frontends(maps)} == wanted


def test_backends_with_as_many_connections_as_they_may_have_are_full(maps, sync):
    choice = backends("10.1.0.1", "10.1.0.2")
    limited = frontend(choice=choice, limits=Limits(OpenLimit(7)), counts_open=True)
    sync.resync(by_service(limited, frontend("10.96.0.2", choice, service=named("other"))))
    for number in range(4):
        maps["lb_open"].update(index(number), pack_open(6 + number % 2))
    other, found = read_frontends(maps)
    assert [found.in_use(each).is_full for each in choice.backends] == [False, True]
    assert not any(other.in_use(each).is_full for each in choice.backends)


def test_choices_without_backends_say_what_happens(maps, sync):
    sync.resync(by_service(frontend(others=Choice((), IfEmpty.DROP))))
    (found,) = read_frontends(maps)
    assert (found.frontend.local, found.frontend.others) == (NOTHING, Choice((), IfEmpty.DROP))


def test_the_order_is_service_port_type_family_address(maps, sync):
    wildcard = FrontendKey(WILDCARD[Family.IPV4], 30000, Protocol.TCP)
    sync.resync(
        by_service(
            frontend("fd00::1"),
            frontend(key=wildcard, type=FrontendType.NODE_PORT),
            frontend("192.0.2.2", type=FrontendType.LOAD_BALANCER),
            frontend("192.0.2.1", type=FrontendType.LOAD_BALANCER),
            frontend("10.96.0.1"),
            frontend(key=key("10.96.0.1", 53, Protocol.UDP)),
            frontend("10.96.0.9", service=named("a")),
            frontend("10.96.0.2"),
        )
    )
    found = [each.frontend for each in read_frontends(maps)]
    assert [(each.service.service, each.type, address_of(each)) for each in found] == [
        ("a", "ClusterIP", "10.96.0.9"),
        ("web", "ClusterIP", "10.96.0.1"),
        ("web", "ClusterIP", "10.96.0.2"),
        ("web", "ClusterIP", "fd00::1"),
        ("web", "NodePort", "0.0.0.0"),
        ("web", "LoadBalancer", "192.0.2.1"),
        ("web", "LoadBalancer", "192.0.2.2"),
        ("web", "ClusterIP", "10.96.0.1"),
    ]


def test_one_service_alone(maps, sync):
    sync.resync(by_service(frontend(), frontend("10.96.0.9", service=named("a"))))
    (found,) = read_frontends(maps, ServiceName("default", "a"))
    assert address_of(found.frontend) == "10.96.0.9"
    assert read_frontends(maps, ServiceName("other", "a")) == []


def test_connections_of_backends_and_what_uses_them_now(maps, sync):
    sync.resync(by_service(frontend(choice=backends("10.1.0.1"))))
    count(maps, "lb_count_back", 0, 4, 0, 0)
    reply, original = Direction.LB_DIR_REPLY, Direction.LB_DIR_ORIGINAL
    add_socket(maps, 1, reply, backend=0, serial=1)
    add_socket(maps, 2, reply, backend=0, serial=1)
    add_socket(maps, 2, original, backend=0, serial=1)
    add_socket(maps, 3, reply, backend=0, serial=9)
    add_flow(maps, "lb_conntrack", 1, backend=0, serial=1)
    add_flow(maps, "lb_ct_short", 2, backend=0, serial=1)
    add_flow(maps, "lb_ct_short", 3, backend=0, serial=1, state=CtState.LB_CT_CLOSED)
    (found,) = read_frontends(maps)
    assert list(found.backends.values()) == [in_use("10.1.0.1", active=3, connections=8)]


def test_a_backend_that_left_is_shown_while_it_has_flows(maps, sync):
    sync.resync(by_service(frontend(choice=backends("10.1.0.1"))))
    add_flow(maps, "lb_conntrack", 1, backend=0, serial=1)
    add_flow(maps, "lb_conntrack", 2, backend=60000, serial=1)
    sync.apply(by_service(frontend(choice=backends("10.1.0.2"))))
    (found,) = read_frontends(maps)
    assert found.frontend.local == backends("10.1.0.2")
    assert found.draining == (in_use("10.1.0.1", usable=False, active=1),)


def test_a_backend_that_came_back_is_in_use_beside_the_flows_of_the_one_before(maps, sync):
    sync.resync(by_service(frontend(choice=backends("10.1.0.1"))))
    add_flow(maps, "lb_conntrack", 1, backend=0, serial=1)
    sync.apply(by_service(frontend()))
    sync.apply(by_service(frontend(choice=backends("10.1.0.1"))))
    (found,) = read_frontends(maps)
    assert list(found.backends.values()) == [in_use("10.1.0.1")]
    assert found.draining == (in_use("10.1.0.1", usable=False, active=1),)


def test_backends_come_in_the_order_of_their_addresses(maps, sync):
    sync.resync(by_service(frontend(choice=backends("10.1.0.2"))))
    sync.apply(by_service(frontend(choice=backends("10.1.0.1", "10.1.0.2"))))
    (found,) = read_frontends(maps)
    assert found.frontend.local == backends("10.1.0.1", "10.1.0.2")


def test_a_flow_of_a_recycled_backend_is_nobodys(maps, sync):
    sync.resync(by_service(frontend(choice=backends("10.1.0.1"))))
    sync.apply(by_service(frontend(choice=NOTHING)))
    add_flow(maps, "lb_conntrack", 1, backend=0, serial=7)
    assert read_frontends(maps)[0].draining == ()


def test_what_changes_while_it_is_read_is_read_again(maps, sync, monkeypatch):
    sync.resync(by_service(frontend()))
    descs, reads = maps["lb_descs"], []
    whole = descs.chunks

    def torn_at_first(limit=0):
        reads.append(limit)
        for chunk in whole(limit):
            yield chunk._replace(values=bytes(len(chunk.values))) if len(reads) == 1 else chunk

    monkeypatch.setattr(descs, "chunks", torn_at_first)
    assert [address_of(each.frontend) for each in read_frontends(maps)] == ["10.96.0.1"]
    assert len(reads) > 1


def test_a_frontend_that_stays_torn_is_left_out(maps, sync):
    sync.resync(by_service(frontend(), frontend("10.96.0.2")))
    maps["lb_current"].update(index(0), maps["lb_current"].lookup(index(1)) or b"")
    assert [address_of(each.frontend) for each in read_frontends(maps)] == ["10.96.0.2"]
