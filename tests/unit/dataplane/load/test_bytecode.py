# SPDX-License-Identifier: Apache-2.0
import struct

import pytest

from ebpflb.dataplane.load.bytecode import Bytecode, Map, packed, renumbered, unpacked

MAP, NUMBER, MOVE = (0x18, 0x11), (0x18, 0x01), (0xB7, 0x10)


def code(*instructions):
    """Instructions out of operation, registers and number."""
    return b"".join(struct.pack("=BBhi", *kind, -1, number) for kind, number in instructions)


def test_only_maps_get_another_number():
    before = code((MAP, 7), ((0, 0), 0), (NUMBER, 7), ((0, 0), 7), (MOVE, 7), (MAP, 8))
    after = code((MAP, 0), ((0, 0), 0), (NUMBER, 7), ((0, 0), 7), (MOVE, 7), (MAP, 1))
    assert renumbered(before, {7: 0, 8: 1}) == after
    assert renumbered(after, [7, 8]) == before


@pytest.mark.parametrize("kind", [MAP, (0x18, 0x21), (0x18, 0x41)])
def test_what_is_no_map_of_ours_is_an_error(kind):
    with pytest.raises(LookupError):
        renumbered(code((kind, 9)), {7: 0})


def test_what_is_packed_comes_out_again():
    maps = [Map("lb_a", True, 9, 4, 8, 16, 1), Map("lb_b", False, 27, 0, 0, 4096, 0)]
    programs = {"lb_connect4": code((MAP, 1)), "lb_connect6": b"", "lb_l3_egress": code((MOVE, 10))}
    assert unpacked(packed(Bytecode(maps, programs))) == Bytecode(maps, programs)
