# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.flows.conntrack import flow_key, lives, open_flows, reverse
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction
from ebpflb.dataplane.layout.structs import LbAddr, LbConntrack, LbTuple
from ebpflb.model.address import Protocol
from tests.builders import address

CLIENT, VIP = (address("10.1.0.9"), 40000), (address("fd00::1"), 80)
TO = LbTuple(saddr=LbAddr.from_buffer_copy(CLIENT[0]), sport=7, proto=Protocol.UDP)


def entry(**fields) -> bytes:
    given = {"backend": 3, "serial": 4, "created": 5, "last_seen": 6, "to": TO, **fields}
    return bytes(LbConntrack(**given))


def test_a_key_has_the_layout_of_c():
    key = LbTuple.from_buffer_copy(flow_key(CLIENT, VIP, Protocol.TCP))
    assert (bytes(key.saddr), key.sport) == CLIENT
    assert (bytes(key.daddr), key.dport) == VIP
    assert (key.proto, bytes(key.pad)) == (Protocol.TCP, bytes(3))


def test_the_reverse_exchanges_both_ends():
    assert reverse(flow_key(CLIENT, VIP, Protocol.TCP)) == flow_key(VIP, CLIENT, Protocol.TCP)


def test_a_flow_is_open_in_its_original_direction_until_either_side_has_closed_it():
    values = b"".join(
        (
            entry(direction=Direction.LB_DIR_ORIGINAL, state=CtState.LB_CT_ESTABLISHED),
            entry(direction=Direction.LB_DIR_REPLY),
            entry(direction=Direction.LB_DIR_ORIGINAL, state=CtState.LB_CT_CLOSED),
            entry(direction=Direction.LB_DIR_ORIGINAL, other_state=CtState.LB_CT_CLOSED),
            entry(
                direction=Direction.LB_DIR_ORIGINAL,
                state=CtState.LB_CT_ESTABLISHED | CtState.LB_CT_OTHER_FIN,
                flags=CtFlag.LB_CT_DSR,
            ),
        )
    )
    use = (3).to_bytes(4, "little") + (4).to_bytes(4, "little")
    assert open_flows(values) == [(use, 5)]


def test_open_flows_with_a_flag_may_be_left_out():
    plain = entry(direction=Direction.LB_DIR_ORIGINAL)
    tunneled = entry(direction=Direction.LB_DIR_ORIGINAL, flags=CtFlag.LB_CT_TUNNELED)
    assert len(open_flows(plain + tunneled)) == 2
    assert len(open_flows(plain + tunneled, but=CtFlag.LB_CT_TUNNELED)) == 1


def test_of_a_life_there_is_what_ends_it():
    assert list(lives(entry(state=1, other_state=2) * 2)) == [(bytes(TO), 5, 6, 1, 2)] * 2
