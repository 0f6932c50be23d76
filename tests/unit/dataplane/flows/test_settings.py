# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.flows.settings import write_service_nets
from ebpflb.dataplane.layout.structs import LbAddr, LbNet4, LbNet6, LbServiceNets
from ebpflb.model.address import parse_address
from tests.memory_maps import memory_maps

KEY = bytes(4)


def written(*ranges: str) -> LbServiceNets:
    nets = memory_maps()["lb_service_nets"]
    assert write_service_nets(nets, ranges) == []
    value = nets.lookup(KEY)
    assert value is not None
    return LbServiceNets.from_buffer_copy(value)


def test_each_family_has_its_networks_with_their_masks():
    nets = written("fd00:96::/112", "10.96.0.0/12")
    assert list(nets.ipv4[:2]) == [LbNet4(0x0A600000, 0xFFF00000), LbNet4(0, 0)]
    mask = LbAddr.from_buffer_copy(bytes([255] * 14 + [0, 0]))
    assert nets.ipv6[0] == LbNet6(LbAddr.from_buffer_copy(parse_address("fd00:96::")), mask)
    assert bytes(nets.ipv6[1]) == bytes(32)


def test_what_lies_in_another_network_takes_no_room():
    ranges = ["10.96.0.0/13", "10.104.0.0/13", "10.99.0.0/16"]
    nets = written(*ranges)
    assert list(nets.ipv4[:2]) == [LbNet4(0x0A600000, 0xFFF00000), LbNet4(0, 0)]


def test_a_range_of_all_addresses_is_none():
    assert written("0.0.0.0/0", "::/0") == LbServiceNets()


def test_what_has_no_room_is_reported_and_the_others_are_written():
    nets = memory_maps()["lb_service_nets"]
    ranges = [f"10.{2 * number}.0.0/16" for number in range(9)]
    assert write_service_nets(nets, ["fd00::/112", *ranges]) == ["10.16.0.0/16"]
    value = nets.lookup(KEY)
    assert value is not None
    found = LbServiceNets.from_buffer_copy(value)
    assert found.ipv4[7] == LbNet4(0x0A0E0000, 0xFFFF0000)
    assert found.ipv6[0].net == LbAddr.from_buffer_copy(parse_address("fd00::"))


def test_ranges_that_are_gone_are_cleared():
    nets = memory_maps()["lb_service_nets"]
    write_service_nets(nets, ["10.96.0.0/12", "fd00::/112"])
    write_service_nets(nets, [])
    assert nets.lookup(KEY) == bytes(LbServiceNets())
