# SPDX-License-Identifier: Apache-2.0
"""The counts of the open connections of clients approach the contents of the flow tables."""

from collections.abc import Iterator

import pytest

from ebpflb.dataplane.flows.client_uses import client_key, correct_client_uses, count_flows
from ebpflb.dataplane.flows.conntrack import flow_key
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction, Hook
from ebpflb.dataplane.layout.records import pack_index, pack_limits
from ebpflb.dataplane.layout.structs import LbClientUse, LbConntrack
from ebpflb.model.address import Protocol
from ebpflb.model.extensions.limits import Limits, OpenLimit, rate_limit
from tests.builders import address
from tests.memory_maps import memory_maps

PER_CLIENT = Limits(per_client=OpenLimit(10))
WEB, OTHER = 1, 2
CLIENT = "198.51.100.9"
OUTSIDE, POD, NODE = Hook.LB_HOOK_HOST_INGRESS, Hook.LB_HOOK_POD_INGRESS, Hook.LB_HOOK_HOST_EGRESS
ENDED = CtState.LB_CT_CLOSED
ORIGINAL = Direction.LB_DIR_ORIGINAL


@pytest.fixture
def maps() -> MapSet:
    """The Service 1 limits clients."""
    made = memory_maps()
    made["lb_limits"].update(pack_index(WEB), pack_limits(PER_CLIENT))
    return made


def begin(
    maps: MapSet,
    numbers: Iterator[int],
    client: str = CLIENT,
    table: str = "lb_conntrack",
    **fields: int,
) -> None:
    """A flow from the next port."""
    usual = {"service": WEB, "direction": ORIGINAL, "hook": OUTSIDE}
    key = flow_key((address(client), next(numbers)), (address("10.96.0.1"), 80), Protocol.TCP)
    maps[table].update(key, bytes(LbConntrack(**{**usual, **fields})))


def put(maps: MapSet, opened: int, service: int = WEB, client: str = CLIENT) -> bytes:
    key = client_key(service, address(client), OUTSIDE)
    maps["lb_client_uses"].update(key, bytes(LbClientUse(open=opened, due=77)))
    return key


def found(maps: MapSet, key: bytes) -> tuple[int, int]:
    use = LbClientUse.from_buffer_copy(maps["lb_client_uses"].lookup(key) or b"")
    return use.open, use.due


@pytest.mark.parametrize(
    ("before", "flows", "after"), [(10, 0, 5), (0, 3, 2), (1, 0, 0), (0, 1, 1), (2, 2, 2)]
)
def test_a_step_goes_half_of_the_way(maps: MapSet, before: int, flows: int, after: int):
    key, ports = put(maps, before), iter(range(1, 99))
    for _ in range(flows):
        begin(maps, ports)
    assert correct_client_uses(maps) == (before != after)
    assert found(maps, key) == (after, 77)


def test_open_flows_of_all_tables_count_and_no_others(maps: MapSet):
    ports = iter(range(1, 99))
    begin(maps, ports)
    begin(maps, ports, table="lb_ct_udp")
    begin(maps, ports, table="lb_ct_dsr", flags=CtFlag.LB_CT_DSR)
    for fields in (
        {"service": OTHER},
        {"direction": Direction.LB_DIR_REPLY},
        {"state": ENDED},
        {"other_state": ENDED},
        {"hook": NODE},
        {"flags": CtFlag.LB_CT_TUNNELED},
        {"flags": CtFlag.LB_CT_DSR, "state": CtState.LB_CT_OTHER_FIN},
    ):
        begin(maps, ports, **fields)
    assert count_flows(maps, {WEB}) == {client_key(WEB, address(CLIENT), OUTSIDE): 3}


def test_addresses_of_one_network_outside_are_one_client_and_pods_are_each_one(maps: MapSet):
    ports = iter(range(1, 99))
    for text, hook in (
        *(("2001:db8::1", OUTSIDE), ("2001:db8::2", OUTSIDE), ("2001:db8:0:1::1", OUTSIDE)),
        *(("fd00::1", POD), ("fd00::2", POD), ("192.0.2.1", OUTSIDE), ("192.0.2.2", OUTSIDE)),
    ):
        begin(maps, ports, text, hook=hook)
    assert sorted(count_flows(maps, {WEB}).values()) == [1, 1, 1, 1, 1, 2]
    assert client_key(WEB, address("2001:db8::1"), OUTSIDE)[4:] == address("2001:db8::")


def test_what_changes_meanwhile_is_not_counted_twice(maps: MapSet):
    key = put(maps, 20)

    def counted(maps: MapSet, _services: object) -> dict[bytes, int]:
        put(maps, 10)
        return {key: 15}

    assert correct_client_uses(maps, counted) == 0
    assert found(maps, key)[0] == 10


def test_a_client_that_is_evicted_meanwhile_is_not_brought_back(maps: MapSet):
    key = put(maps, 20)

    def counted(maps: MapSet, _services: object) -> dict[bytes, int]:
        maps["lb_client_uses"].delete(key)
        return {}

    assert correct_client_uses(maps, counted) == 0
    assert maps["lb_client_uses"].lookup(key) is None


def test_nobody_counts_flows_for_nothing():
    maps = memory_maps()
    rate = Limits(OpenLimit(3), new_per_client=rate_limit(1, per_minute=False))
    maps["lb_limits"].update(pack_index(WEB), pack_limits(rate))
    key = put(maps, 5)

    def never(*_: object) -> dict[bytes, int]:
        raise AssertionError

    assert correct_client_uses(maps, never) == 0
    assert found(maps, key)[0] == 5


def test_clients_of_other_services_are_left_alone(maps: MapSet):
    key = put(maps, 5, OTHER)
    assert correct_client_uses(maps) == 0
    assert found(maps, key)[0] == 5
