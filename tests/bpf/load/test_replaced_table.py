# SPDX-License-Identifier: Apache-2.0
"""Flow tables are replaced by larger ones, which hold every surviving flow."""

import time
from dataclasses import replace
from errno import E2BIG

import pytest

from ebpflb.dataplane.kernel.maps import BpfMap, open_maps
from ebpflb.dataplane.layout.capacity import FLOW_MAPS
from ebpflb.dataplane.layout.enums import CtState, SettingFlag
from ebpflb.dataplane.layout.structs import LbConntrack, LbSettings, LbTuple
from ebpflb.dataplane.load import loader
from ebpflb.dataplane.load.loader import Build, Loader, pinned_sizes
from ebpflb.dataplane.load.pins import Generation, Pins
from ebpflb.errors import MapError
from tests.bpf.harness.loading import SIZES
from tests.bpf.load.loading import (
    LARGER_TABLE,
    TAKEN_OVER,
    contents,
    element,
    fill,
    load,
    make_maps,
    refuse,
    shared,
    start,
)


def test_a_flow_table_that_is_there_keeps_its_size_until_it_is_half_full(root: Pins):
    first = start(root)
    fill(first, FLOW_MAPS)
    assert load(root, LARGER_TABLE, refuse) == first
    fill_half(first)
    before = contents(first, FLOW_MAPS)
    second = load(root, LARGER_TABLE)
    assert shared(first, second) == set(TAKEN_OVER) - {"lb_conntrack"}
    assert pinned_sizes(second) == LARGER_TABLE
    assert contents(second, FLOW_MAPS) == before


def fill_half(generation: Generation) -> BpfMap:
    """Fill more than half of the table of established flows."""
    table = open_maps(generation.maps)["lb_conntrack"]
    for seed in range(SIZES.conntrack // 2 + 1):
        table.update(*element({table.name: table}, table.name, seed))
    return table


def is_set(generation: Generation, flag: SettingFlag) -> bool:
    value = open_maps(generation.maps)["lb_settings"].lookup(bytes(4)) or b""
    return flag in SettingFlag(LbSettings.from_buffer_copy(value).flags)


def is_holding(generation: Generation) -> bool:
    return is_set(generation, SettingFlag.LB_SETTING_HOLD)


def test_no_flow_is_established_in_the_old_table_while_it_is_replaced(root: Pins):
    first = start(root)
    table = fill_half(first)
    made = Loader(root, Build(has_set_retval=True), compiler=make_maps)
    second = made.load(LARGER_TABLE)
    assert is_holding(first)
    assert made.way_of_flows(second) == SettingFlag.LB_SETTING_HOLD
    new = open_maps(second.maps)["lb_conntrack"]
    ended, goes_on = (element({table.name: table}, table.name, seed)[0] for seed in (1, 2))
    ended_by_new = element({table.name: table}, table.name, 3)[0]
    assert table.delete(ended)
    assert new.delete(ended_by_new)
    made.finish(second)
    assert not made.way_of_flows(second)
    found = [new.lookup(key) is not None for key in (ended, ended_by_new, goes_on)]
    assert found == [False, False, True]


def test_a_replacement_that_fails_lets_flows_go_on(root: Pins, monkeypatch: pytest.MonkeyPatch):
    first = start(root)
    fill_half(first)

    def fail_to_copy(*_: object) -> None:
        assert is_holding(first)
        raise MapError("lb_conntrack", "update", E2BIG)

    with monkeypatch.context() as failing:
        failing.setattr(loader, "_copy_maps", fail_to_copy)
        with pytest.raises(MapError):
            load(root, LARGER_TABLE)
    assert not is_holding(first)
    assert load(root, LARGER_TABLE) != first


# Tables that evict

DIVERT = SettingFlag.LB_SETTING_DIVERT
MORE = replace(SIZES, ct_short=4 * SIZES.ct_short, ct_udp=4 * SIZES.ct_udp, ct_dsr=4 * SIZES.ct_dsr)
LARGER = {"ct_short", "ct_udp", "ct_dsr"}


def put(generation: Generation, table: str, port: int, **fields: int) -> None:
    entry = LbConntrack(created=1, **{"last_seen": 1, **fields})
    open_maps(generation.maps)[table].update(bytes(LbTuple(sport=port)), bytes(entry))


def states(generation: Generation, table: str) -> dict[int, tuple[int, int]]:
    """State and peer state by port."""
    found = {}
    for key, value in open_maps(generation.maps)[table].items():
        entry = LbConntrack.from_buffer_copy(value)
        found[LbTuple.from_buffer_copy(key).sport] = entry.state, entry.other_state
    return found


@pytest.fixture
def divertible(root: Pins) -> Generation:
    made = start(root)
    put(made, "lb_ct_dsr", 1)
    return made


def test_tables_that_evict_keep_their_size_unless_the_agent_wants_larger_ones(root: Pins):
    first = start(root)
    fill(first, FLOW_MAPS)
    assert load(root, MORE, refuse) == first


@pytest.mark.parametrize("table", ["lb_ct_short", "lb_ct_udp", "lb_ct_dsr"])
def test_new_flows_are_elsewhere_while_their_table_is_replaced(
    root: Pins, divertible: Generation, table: str
):
    put(divertible, table, 1)
    made = Loader(root, Build(has_set_retval=True), compiler=make_maps)
    second = made.load(MORE, {table.removeprefix("lb_")})
    assert is_set(divertible, DIVERT)
    assert made.way_of_flows(second) == DIVERT
    assert shared(divertible, second) == set(TAKEN_OVER) - {table}
    assert states(second, table) == {1: (0, 0)}
    made.finish(second)
    assert not made.way_of_flows(second)
    assert open_maps(second.maps)[table].max_entries == 4 * SIZES.ct_short


def test_the_table_of_tunneled_flows_is_larger_once_the_node_takes_part(root: Pins):
    first = start(root)
    made = Loader(root, Build(has_set_retval=True), compiler=make_maps)
    second = made.load(MORE)
    assert shared(first, second) == set(TAKEN_OVER) - {"lb_ct_dsr"}
    assert made.way_of_flows(second) == DIVERT


def test_what_the_old_programs_change_meanwhile_is_in_the_new_table(
    root: Pins, divertible: Generation
):
    table, syn, ack = "lb_ct_short", CtState.LB_CT_SYN, CtState.LB_CT_ACK
    for port in (1, 2, 3):
        put(divertible, table, port, state=syn)
    made = Loader(root, Build(has_set_retval=True), compiler=make_maps)
    second = made.load(MORE, LARGER)
    put(divertible, table, 1, state=syn, other_state=ack)
    assert open_maps(divertible.maps)[table].delete(bytes(LbTuple(sport=2)))
    # A closed flow of the new programs, one of the old, and one that both have seen.
    put(second, table, 4, last_seen=time.monotonic_ns())
    put(divertible, table, 5, state=ack)
    put(second, table, 3, state=syn, other_state=ack)
    made.finish(second)
    assert states(second, table) == {
        1: (syn, ack),
        3: (syn, ack),
        4: (0, 0),
        5: (ack, 0),
    }


def test_established_flows_come_first(root: Pins):
    first = start(root)
    fill_half(first)
    put(first, "lb_ct_dsr", 1)
    sizes = replace(MORE, conntrack=LARGER_TABLE.conntrack)
    made = Loader(root, Build(has_set_retval=True), compiler=make_maps)
    second = made.load(sizes, LARGER)
    assert shared(first, second) == set(TAKEN_OVER) - {"lb_conntrack"}
    assert made.way_of_flows(second) == SettingFlag.LB_SETTING_HOLD
