# SPDX-License-Identifier: Apache-2.0
from errno import EIO
from typing import Any

import pytest

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES
from ebpflb.dataplane.flows.expiry import Expired, Expiry
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction, FlowEnd, FlowEvent, Hook
from ebpflb.dataplane.layout.structs import LbConntrack, LbFlowRecord, LbSettings, LbTuple
from ebpflb.errors import MapError
from ebpflb.model.address import Address, Protocol, parse_address
from tests.memory_maps import memory_maps
from tests.unit.dataplane.flows.ends import CLIENT, NODE, POD, VIP, flow_tuple

SECOND = 1_000_000_000
SYN, ESTABLISHED, CLOSED = CtState.LB_CT_SYN, CtState.LB_CT_ESTABLISHED, CtState.LB_CT_CLOSED
OPENING_TIME, ESTABLISHED_TIME, CLOSED_TIME, CLOSE_WAIT_TIME = 60, 8000, 10, 900
UDP_TIME, UDP_STREAM_TIME = 30, 300
SAMPLED = int(CtFlag.LB_CT_SAMPLED)
ACK, PEER_FIN = CtState.LB_CT_ACK, CtState.LB_CT_OTHER_FIN
OTHER_VIP = parse_address("10.96.0.2")


class Flows:
    """Flows of clients on ports of their own to VIP:80, with SNAT to NODE; `now` in seconds."""

    def __init__(self, budget: int = 100, now: int = 0) -> None:
        self.maps = memory_maps(dict.fromkeys(FLOW_TABLES, 64))
        self.now = now
        self.heard: list[bytes] = []
        self.expiry = Expiry(
            self.maps, clock=lambda: self.now * SECOND, budget=budget, tell=self.heard.extend
        )
        timeouts = LbSettings(
            tcp_opening_timeout=OPENING_TIME,
            tcp_established_timeout=ESTABLISHED_TIME,
            tcp_closed_timeout=CLOSED_TIME,
            tcp_close_wait_timeout=CLOSE_WAIT_TIME,
            udp_timeout=UDP_TIME,
            udp_stream_timeout=UDP_STREAM_TIME,
            flow_events=1 << FlowEvent.LB_FLOW_END,
        )
        self.maps["lb_settings"].update(bytes(4), bytes(timeouts))

    def add(
        self,
        port: int,
        *,
        state: CtState = ESTABLISHED,
        seen: tuple[int, int] = (0, 0),
        protocol: Protocol = Protocol.TCP,
        tables: tuple[str, str] = ("lb_conntrack", "lb_conntrack"),
        flags: int = 0,
    ) -> None:
        """`seen` and `tables`: of the original direction and of the reply, if that was seen."""
        original = flow_tuple(CLIENT, port, VIP, 80, protocol)
        translated = flow_tuple(NODE, port + 1000, POD, 8080, protocol)
        reply = flow_tuple(POD, 8080, NODE, port + 1000, protocol)
        untranslated = flow_tuple(VIP, 80, CLIENT, port, protocol)
        self._put(tables[0], original, _entry(translated, seen[0], state, flags))
        entry = _entry(untranslated, seen[1], state, flags)
        entry.direction = Direction.LB_DIR_REPLY
        entry.packets = seen[1]
        self._put(tables[1], reply, entry)

    def _put(self, table: str, key: LbTuple, entry: LbConntrack) -> None:
        self.maps[table].update(bytes(key), bytes(entry))

    def told_at(self, now: int) -> list[tuple[int, FlowEnd]]:
        """The clients' ports of the flow ends that a complete pass reports at this time."""
        self.now = now
        self.heard.clear()
        while self.expiry.step().unused is None:
            pass
        records = [LbFlowRecord.from_buffer_copy(each) for each in self.heard]
        assert all(each.time == now * SECOND for each in records)
        return sorted((each.client_port, FlowEnd(each.end)) for each in records)

    @property
    def count(self) -> int:
        return len(list(self.maps["lb_conntrack"].items())) + len(
            list(self.maps["lb_ct_short"].items())
        )


def _entry(to: LbTuple, seen: int, state: CtState, flags: int = 0) -> LbConntrack:
    return LbConntrack(
        to=to,
        created=seen * SECOND,
        last_seen=seen * SECOND,
        direction=Direction.LB_DIR_ORIGINAL,
        hook=Hook.LB_HOOK_HOST_INGRESS,
        state=state,
        flags=flags,
    )


@pytest.mark.parametrize(
    ("state", "protocol", "seconds"),
    [
        (SYN, Protocol.TCP, OPENING_TIME),
        (ESTABLISHED | SYN, Protocol.TCP, ESTABLISHED_TIME),
        (CLOSED | ESTABLISHED, Protocol.TCP, CLOSED_TIME),
        (ESTABLISHED | PEER_FIN | CLOSED, Protocol.TCP, CLOSED_TIME),
        (SYN, Protocol.UDP, UDP_TIME),
        (ACK, Protocol.UDP, UDP_TIME),
        (ESTABLISHED, Protocol.UDP, UDP_STREAM_TIME),
        (ESTABLISHED, Protocol.SCTP, ESTABLISHED_TIME),
    ],
)
def test_a_flow_lives_as_long_as_its_state_says(state: CtState, protocol: Protocol, seconds: int):
    flows = Flows()
    flows.add(1, state=state, protocol=protocol)
    flows.now = seconds
    assert flows.expiry.step() == Expired(2, 0, frozenset())
    flows.now = seconds + 1
    assert flows.expiry.step() == Expired(2, 2, frozenset())
    assert flows.count == 0


@pytest.mark.parametrize("seen", [(0, 100), (100, 0)])
def test_a_flow_that_is_seen_in_one_direction_keeps_both(seen: tuple[int, int]):
    flows = Flows()
    flows.add(1, seen=seen)
    flows.now = ESTABLISHED_TIME + 100
    assert flows.expiry.step().deleted == 0
    flows.now += 1
    assert flows.expiry.step().deleted == 2


@pytest.mark.parametrize(
    ("original", "reply", "seconds"),
    [
        (SYN, ESTABLISHED, ESTABLISHED_TIME),
        (ESTABLISHED, CLOSED, CLOSED_TIME),
        (ESTABLISHED, ESTABLISHED | PEER_FIN, CLOSE_WAIT_TIME),
        (ESTABLISHED | PEER_FIN, ESTABLISHED | PEER_FIN, CLOSED_TIME),
        (SYN | PEER_FIN, SYN, OPENING_TIME),
    ],
)
def test_a_flow_has_the_state_of_both_directions(original: CtState, reply: CtState, seconds: int):
    flows = Flows()
    flows.add(1, state=original)
    key = bytes(flow_tuple(POD, 8080, NODE, 1001, Protocol.TCP))
    entry = LbConntrack.from_buffer_copy(flows.maps["lb_conntrack"].lookup(key) or b"")
    entry.state = reply
    flows.maps["lb_conntrack"].update(key, bytes(entry))
    flows.now = seconds
    assert flows.expiry.step().deleted == 0
    flows.now += 1
    assert flows.expiry.step().deleted == 2


def test_a_state_is_what_packets_of_either_direction_wrote():
    flows = Flows()
    flows.add(1)
    for key, value in list(flows.maps["lb_conntrack"].items()):
        entry = LbConntrack.from_buffer_copy(value)
        entry.other_state = CLOSED
        flows.maps["lb_conntrack"].update(key, bytes(entry))
    flows.now = CLOSED_TIME + 1
    assert flows.expiry.step().deleted == 2


@pytest.mark.parametrize(
    "tables", [("lb_ct_short", "lb_ct_short"), ("lb_conntrack", "lb_ct_short")]
)
def test_both_directions_go_wherever_they_are(tables: tuple[str, str]):
    flows = Flows()
    flows.add(1, tables=tables, state=CLOSED)
    flows.now = CLOSED_TIME + 1
    assert flows.expiry.step().deleted == 2
    assert flows.count == 0


def test_a_direction_whose_other_one_is_gone_goes_alone():
    flows = Flows()
    flows.add(1)
    key = bytes(flow_tuple(CLIENT, 1, VIP, 80, Protocol.TCP))
    flows.maps["lb_conntrack"].delete(key)
    flows.now = ESTABLISHED_TIME + 1
    assert flows.expiry.step() == Expired(1, 1, frozenset())


def test_what_an_ended_flow_left_behind_goes_without_the_flow_that_has_its_client_now():
    flows = Flows()
    flows.add(1, seen=(100, 100))
    old = flow_tuple(POD, 8080, NODE, 9999, Protocol.TCP)
    to = flow_tuple(VIP, 80, CLIENT, 1, Protocol.TCP)
    flows._put("lb_ct_short", old, _entry(to, 0, CLOSED))
    flows.now = 100 + CLOSED_TIME + 1
    assert flows.expiry.step() == Expired(3, 1, frozenset())
    assert len(list(flows.maps["lb_conntrack"].items())) == 2


def test_a_packet_after_the_reading_saves_the_flow(monkeypatch: pytest.MonkeyPatch):
    flows = Flows()
    flows.add(1)
    flows.now = ESTABLISHED_TIME + 1
    stale = list(flows.maps["lb_conntrack"].chunks())
    flows.add(1, seen=(flows.now, 0))
    monkeypatch.setattr(flows.maps["lb_conntrack"], "chunks", lambda _: iter(stale))
    assert flows.expiry.step().deleted == 0


def test_a_step_looks_at_no_more_than_its_budget():
    flows = Flows(budget=4)
    for port in range(5):
        flows.add(port)
    flows.now = ESTABLISHED_TIME + 1
    assert [flows.expiry.step() for _ in range(2)] == [Expired(4, 4), Expired(4, 4)]
    assert flows.expiry.step() == Expired(2, 2, frozenset())


def test_without_timeouts_nothing_expires():
    flows = Flows()
    flows.maps["lb_settings"].update(bytes(4), bytes(LbSettings()))
    flows.add(1)
    flows.now = 1 << 30
    assert flows.expiry.step().deleted == 0


@pytest.mark.parametrize("address", [CLIENT, VIP, NODE, POD])
@pytest.mark.parametrize("table", ["lb_conntrack", "lb_ct_short"])
def test_an_address_that_a_flow_names_is_not_unused(address: Address, table: str):
    flows = Flows(budget=2)
    flows.add(1, tables=(table, table))
    idle = {address, OTHER_VIP}
    assert flows.expiry.step(idle) == Expired(2, 0)
    assert flows.expiry.step() == Expired(0, 0, {OTHER_VIP})
    flows.now = ESTABLISHED_TIME + 1
    assert flows.expiry.step(idle).deleted == 2
    assert flows.expiry.step().unused == idle


def test_the_port_of_a_frontend_that_a_flow_names_is_not_unused():
    flows = Flows(budget=2)
    flows.add(1)
    # The last one is that of the reply, which any Service may have, too.
    ports = frozenset({80, 30080, 1001})
    assert flows.expiry.step(ports) == Expired(2, 0)
    assert flows.expiry.step().unused == {30080, 1001}
    flows.now = ESTABLISHED_TIME + 1
    assert flows.expiry.step(ports).deleted == 2
    assert flows.expiry.step().unused == ports


def test_after_an_error_a_pass_starts_over(monkeypatch: pytest.MonkeyPatch):
    flows = Flows(budget=2)
    flows.add(1)

    def fail(_: bytes) -> None:
        raise MapError("lb_conntrack", "lookup", EIO)

    flows.now = ESTABLISHED_TIME + 1
    with monkeypatch.context() as patch:
        patch.setattr(flows.maps["lb_conntrack"], "lookup", fail)
        with pytest.raises(MapError):
            flows.expiry.step({VIP})
    assert flows.expiry.step({OTHER_VIP}) == Expired(2, 2)
    assert flows.expiry.step().unused == {OTHER_VIP}


def test_no_maps_but_those_of_flows_are_written():
    maps: MapSet = memory_maps(dict.fromkeys(FLOW_TABLES, 8))
    assert Expiry(maps).step() == Expired(0, 0, frozenset())


@pytest.mark.parametrize(
    ("events", "flags", "told"),
    [
        (1 << FlowEvent.LB_FLOW_END, CtFlag.LB_CT_SAMPLED, [FlowEnd.LB_END_NO_ANSWER] * 2),
        (1 << FlowEvent.LB_FLOW_START, CtFlag.LB_CT_SAMPLED, []),
        (1 << FlowEvent.LB_FLOW_END, 0, []),
    ],
    ids=["as asked", "nobody wants ends", "not sampled"],
)
def test_the_end_of_what_expired_is_reported_once(events: int, flags: int, told: list[FlowEnd]):
    flows = Flows()
    settings = LbSettings(tcp_established_timeout=ESTABLISHED_TIME, flow_events=events)
    flows.maps["lb_settings"].update(bytes(4), bytes(settings))
    flows.add(1, flags=flags)
    flows.add(2, flags=flags)
    assert flows.told_at(0) == []
    assert flows.told_at(ESTABLISHED_TIME + 1) == list(enumerate(told, 1))
    assert flows.count == 0
    assert flows.told_at(ESTABLISHED_TIME + 2) == []


def test_a_connection_without_an_answer_is_reported_long_before_it_expires():
    flows = Flows(now=100, budget=2)
    short = ("lb_ct_short", "lb_ct_short")
    for port, began in ((1, 101), (2, 110)):
        flows.add(port, state=SYN, tables=short, seen=(began, 0), flags=SAMPLED)
    assert flows.told_at(116) == []
    assert flows.told_at(117) == [(1, FlowEnd.LB_END_NO_ANSWER)]
    assert flows.told_at(125) == []
    assert flows.told_at(130) == [(2, FlowEnd.LB_END_NO_ANSWER)]
    assert flows.told_at(101 + OPENING_TIME) == []
    assert flows.count == 4
    assert flows.told_at(111 + OPENING_TIME) == []
    assert flows.count == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"seen": (101, 102)},
        {"state": SYN | ACK},
        {"state": ESTABLISHED | SYN},
        {"protocol": Protocol.UDP},
        {"flags": 0},
    ],
    ids=["a SYN ACK", "an ACK", "established", "UDP", "not sampled"],
)
def test_nothing_is_reported_early_about_other_flows(changes: dict[str, Any]):
    flows = Flows(now=100)
    flow: dict[str, Any] = {"state": SYN, "seen": (101, 0), "flags": SAMPLED}
    flows.add(1, **flow | changes)
    assert flows.told_at(118) == []


def test_an_agent_reports_late_connections_that_are_older_than_itself():
    flows = Flows(now=100)
    flows.add(1, state=SYN, seen=(84, 0), flags=SAMPLED)
    assert flows.told_at(105) == []
    assert flows.told_at(85 + OPENING_TIME) == [(1, FlowEnd.LB_END_NO_ANSWER)]


def test_an_error_keeps_no_connection_without_an_answer_from_being_reported(
    monkeypatch: pytest.MonkeyPatch,
):
    flows = Flows(now=100)
    flows.add(1, state=SYN, seen=(101, 0), flags=SAMPLED)

    def fail(_: bytes) -> None:
        raise MapError("lb_conntrack", "lookup", EIO)

    flows.now = 117
    with monkeypatch.context() as patch:
        patch.setattr(flows.maps["lb_conntrack"], "lookup", fail)
        with pytest.raises(MapError):
            flows.expiry.step()
    assert flows.told_at(118) == [(1, FlowEnd.LB_END_NO_ANSWER)]
