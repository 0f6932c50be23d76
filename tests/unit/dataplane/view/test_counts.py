# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.layout.enums import Direction, DropPlace, DropReason
from ebpflb.dataplane.layout.structs import (
    LbConnection,
    LbConnPlace,
    LbDropKey,
    LbSocket,
    LbSocketKey,
    u32,
    u64,
)
from ebpflb.dataplane.view.counts import read_active, read_drops, sum_drops
from ebpflb.model.address import Protocol
from tests.memory_maps import memory_maps


def add_socket(maps, cookie, direction=Direction.LB_DIR_REPLY, backend=3):
    key = LbSocketKey(cookie=cookie, proto=Protocol.UDP, direction=direction)
    maps["lb_sockets"].update(bytes(key), bytes(LbSocket(backend=backend, serial=1)))


def add_connection(maps, cookie, started, backend=3):
    value = LbConnection(started=started, backend=backend, serial=1)
    maps["lb_connections"].update(cookie.to_bytes(8, "little"), bytes(value))


def test_connected_sockets_are_active():
    maps = memory_maps()
    add_connection(maps, 1, started=70)
    add_connection(maps, 2, started=60)
    add_socket(maps, 3)
    found = read_active(maps)
    assert found.flows == {(3, 1): 3}
    assert found.oldest == {(3, 1): 60}
    assert (found.entries["lb_connections"], found.entries["lb_sockets"]) == (2, 1)


def test_connections_at_their_places_are_active():
    maps = memory_maps()
    add_connection(maps, 1, started=70)
    for cookie, started in ((2, 60), (3, 0), (0, 0)):
        connection = LbConnection(started=started, backend=3, serial=1)
        place = LbConnPlace(cookie=cookie, connection=connection)
        maps["lb_conn_places"].update(bytes(u32(cookie)), bytes(place))
    found = read_active(maps)
    assert found.flows == {(3, 1): 2}
    assert found.oldest == {(3, 1): 60}
    assert found.entries["lb_connections"] == 3


def test_a_connection_that_has_sent_no_syn_is_none_yet():
    maps = memory_maps()
    add_connection(maps, 1, started=0)
    found = read_active(maps)
    assert not found.flows
    assert not found.oldest
    assert found.entries["lb_connections"] == 1


def test_a_socket_that_only_sends_is_not_for_its_records_outlive_it():
    maps = memory_maps()
    add_socket(maps, 1)
    add_socket(maps, 1, Direction.LB_DIR_ORIGINAL)
    assert not read_active(maps).flows


def test_drops_are_counted_by_reason_and_place():
    maps = memory_maps()
    no_route, unheard_of = DropReason.LB_DROP_NO_ROUTE, 200
    for reason, place, counted in ((no_route, 3, 7), (no_route, 0, 2), (unheard_of, 3, 1)):
        value = bytes(u64(counted - 1)) + bytes(u64(1))
        maps["lb_count_drop"].update(bytes(LbDropKey(reason, place)), value)
    drops = read_drops(maps)
    assert drops == {(no_route, 3): 7, (no_route, DropPlace.LB_DROP_AT_SOCKET): 2}
    assert {reason: count for reason, count in sum_drops(drops).items() if count} == {no_route: 9}
