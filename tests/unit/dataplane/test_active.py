# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.active import read_active
from ebpflb.dataplane.enums import Direction
from ebpflb.dataplane.memory import memory_maps
from ebpflb.dataplane.structs import Socket, SocketKey
from ebpflb.model.address import Protocol


def add_socket(maps, cookie, protocol, direction=Direction.LB_DIR_REPLY, backend=3):
    key = SocketKey(cookie=cookie, proto=protocol, direction=direction)
    maps["lb_sockets"].update(bytes(key), bytes(Socket(backend=backend, generation=1)))


def test_connected_sockets_are_active():
    maps = memory_maps()
    add_socket(maps, 1, Protocol.TCP)
    add_socket(maps, 2, Protocol.UDP)
    found = read_active(maps)
    assert found.flows == {(3, 1): 2}
    assert found.entries["lb_sockets"] == 2


def test_a_socket_that_only_sends_is_not_for_its_records_outlive_it():
    maps = memory_maps()
    add_socket(maps, 1, Protocol.UDP)
    add_socket(maps, 1, Protocol.UDP, Direction.LB_DIR_ORIGINAL)
    assert not read_active(maps).flows
