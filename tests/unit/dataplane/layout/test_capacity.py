# SPDX-License-Identifier: Apache-2.0
from dataclasses import asdict, replace

from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.layout.capacity import MAPS, MOST_SLOTS, Sizes, WhenFull, sizes_for
from tests.unit.dataplane.desired import backends, frontend

FLOWS = (
    *("conntrack", "ct_short", "ct_udp", "ct_stream", "ct_dsr"),
    *("stack_nat", "sockets", "affinity"),
)


def test_the_kernel_evicts_from_lru_maps_and_no_others():
    evicts = {name for name, spec in MAPS.items() if spec.when_full is WhenFull.EVICTS}
    assert evicts == {name for name, spec in MAPS.items() if spec.kind is MapType.LRU_HASH}


def test_only_arrays_are_never_full():
    for name, spec in MAPS.items():
        assert spec.is_array or spec.when_full is not WhenFull.NEVER, name


def test_what_services_fill_doubles_and_what_flows_fill_stays():
    before, after = asdict(Sizes()), asdict(Sizes().grown())
    assert {name for name, size in after.items() if size == before[name]} == set(FLOWS)
    assert all(after[name] == 2 * before[name] for name in before.keys() - set(FLOWS))


def test_slots_stop_doubling_where_tables_have_their_bound():
    large = replace(Sizes(), slots=MOST_SLOTS // 2)
    assert large.grown().slots == large.grown().grown().slots == MOST_SLOTS
    assert replace(Sizes(), slots=4 * MOST_SLOTS).grown().slots == 4 * MOST_SLOTS


def test_pods_that_no_frontend_names_need_room_as_well():
    here = backends(*(f"10.1.{n // 250}.{n % 250}" for n in range(3000)), local=True).backends
    assert sizes_for([frontend(dsr=True, here=here)]).backends >= 2 * 3000
