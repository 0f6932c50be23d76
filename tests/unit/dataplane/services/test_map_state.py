# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.services.map_state import MapState
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import named
from tests.unit.dataplane.world import SIZES

LAST = (1 << 32) - 1


def test_service_ids_start_over_after_the_last_and_pass_over_those_in_use():
    state = MapState(memory_maps(SIZES))
    state.add_port(named("web"), identity=1)
    state.skip_identities(LAST - 1)
    assert [state.take_identity() for _ in range(3)] == [LAST, 2, 3]
