# SPDX-License-Identifier: Apache-2.0
"""When a pass is due, and its effect; tests/bpf/tc/test_flow_filter.py has the programs' side."""

from sys import byteorder

import pytest

from ebpflb.config.settings import load_settings
from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, flow_key
from ebpflb.dataplane.flows.flow_filter import FilterMarks, filter_floor_of, flow_mark
from ebpflb.dataplane.flows.settings import write_settings
from ebpflb.dataplane.layout.enums import Direction, SettingFlag
from ebpflb.dataplane.layout.structs import LbConntrack
from ebpflb.model.address import Protocol, parse_address
from tests.memory_maps import memory_maps

CLIENT, POD = parse_address("198.51.100.1"), parse_address("10.1.0.1")
SIZE = 65536
MANY = 5000
SECOND = 10**9


class Node:
    def __init__(self) -> None:
        sizes = dict.fromkeys(FLOW_TABLES, 64)
        self.maps = memory_maps({**sizes, "lb_settings": 1, "lb_flow_filter": SIZE})
        self.now = 1000 * SECOND
        self.filter = FilterMarks(self.maps, 16, clock=lambda: self.now)

    def mark(self, places: range, mark: int) -> None:
        value = mark.to_bytes(4, byteorder)
        table = self.maps["lb_flow_filter"]
        table.update_batch([(each.to_bytes(4, byteorder), value) for each in places])

    def marks(self) -> list[int]:
        return [int.from_bytes(each, byteorder) for _, each in self.maps["lb_flow_filter"].items()]

    def reply(self, table: str, port: int) -> None:
        key = flow_key((POD, 80), (CLIENT, port), Protocol.TCP)
        self.maps[table].update(key, bytes(LbConntrack(direction=Direction.LB_DIR_REPLY)))

    def run(self) -> int:
        """A pass, if it is due; the floor after it."""
        while self.filter.step():
            pass
        return filter_floor_of(self.maps["lb_settings"])


def test_at_first_everything_counts_and_a_pass_ends_that():
    node = Node()
    assert node.run() == flow_mark(node.now - 30 * SECOND)
    assert not any(node.marks())


def test_few_marks_are_left_alone():
    node = Node()
    floor = node.run()
    node.now += 3600 * SECOND
    node.mark(range(100), floor)
    assert node.run() == floor


def test_many_marks_are_not_but_only_from_time_to_time():
    node = Node()
    floor = node.run()
    node.mark(range(MANY), floor)
    node.now += 29 * SECOND
    assert node.run() == floor
    node.now += 2 * SECOND
    assert node.run() == flow_mark(node.now - 30 * SECOND) > floor


def test_while_most_marks_are_needed_passes_are_rare():
    node = Node()
    node.run()
    node.now += 31 * SECOND
    node.mark(range(SIZE // 2 + 1), flow_mark(node.now))
    floor = node.run()
    node.now += 500 * SECOND
    assert node.run() == floor
    node.now += 101 * SECOND
    assert node.run() > floor
    node.mark(range(MANY), flow_mark(node.now))
    node.now += 31 * SECOND
    assert node.run() == flow_mark(node.now - 30 * SECOND)


@pytest.mark.parametrize("table", sorted({*FLOW_TABLES} - {"lb_ct_dsr"}))
def test_flows_keep_their_marks(table: str):
    node = Node()
    for port in range(1, 40):
        node.reply(table, port)
    floor = node.run()
    renewed = [mark for mark in node.marks() if mark >= floor]
    assert len(renewed) == 39


def test_a_young_mark_stays_as_it_is():
    node = Node()
    young = flow_mark(node.now) - 5
    node.mark(range(SIZE), young)
    node.reply("lb_conntrack", 1)
    assert node.run() < young
    assert set(node.marks()) == {young}


def test_a_flow_that_moves_meanwhile_is_seen():
    """From lb_conntrack, which is next, to lb_ct_short, which was first."""
    node = Node()
    node.reply("lb_ct_short", 1)
    assert node.filter.step()
    node.reply("lb_ct_short", 2)
    floor = node.run()
    assert len([mark for mark in node.marks() if mark >= floor]) == 2


def test_other_settings_keep_the_floor():
    node = Node()
    floor = node.run()
    options = load_settings({"node-name": "a"}, {})
    write_settings(node.maps["lb_settings"], options, flags=SettingFlag(0), primary={})
    assert filter_floor_of(node.maps["lb_settings"]) == floor
