# SPDX-License-Identifier: Apache-2.0
"""The maps' contents after a sync."""

from ebpflb.dataplane.layout.structs import LbBackend, u32
from tests.unit.dataplane.programs import (
    USABLE,
    filter_flags,
    filter_wanted,
    flags_of,
    pods_wanted,
    vip_flags,
)
from tests.unit.dataplane.world import World, every


def written_by_restart(world: World) -> list[str]:
    before = len(world.watch.written)
    world.resync(world.state)
    return world.watch.written[before:]


def assert_tidy(world: World) -> None:
    """The maps contain, and use, only what the desired state needs."""
    world.sync.forget(world.sync.idle())
    world.now += 10
    world.sync.collect()
    assert not any(world.sync.compare())
    frontends = list(every(world.state))
    assert {key for key, _ in world.maps["lb_addrs"].items()} == vip_flags(frontends).keys()
    passing, wanted = filter_flags(world.maps), filter_wanted(frontends)
    assert passing.keys() == wanted.keys()
    # An address that is still served may have had other flags, which flows still need.
    assert all(flags & wanted[index] == wanted[index] for index, flags in passing.items())
    ports = {each.service for each in frontends}
    used = {name: usage.used for name, usage in world.sync.usage().items()}
    assert used["lb_frontends"] == used["lb_descs"] == len(frontends)
    assert used["lb_names"] == len(ports) == len(list(world.maps["lb_names"].items()))
    named = flags_of(frontends).keys()
    assert len(named) == len(usable(world))
    assert used["lb_backends"] == len(named | pods_wanted(frontends))
    assert len(list(world.maps["lb_frontends"].items())) == len(frontends)
    words = [value for _, value in world.maps["lb_current"].items() if any(value)]
    assert len(words) == len(frontends)
    contents = {
        (each.service, choice.backends, choice.table_slots(each.table_size))
        for each in frontends
        for choice in (each.local, each.others)
    }
    sets = {(each.service, each.allowed_sources) for each in frontends}
    ranges = sum(len(prefixes) for _, prefixes in sets)
    assert used["lb_src_ranges"] == ranges == len(list(world.maps["lb_src_ranges"].items()))
    limited = {each.service for each in frontends if any(each.limits)}
    assert used["lb_limits"] == len(limited) == len(list(world.maps["lb_limits"].items()))
    assert used["lb_slots"] == sum(len(backends) + table for _, backends, table in contents)


def usable(world: World) -> list[int]:
    records = ((key, LbBackend.from_buffer_copy(v)) for key, v in world.maps["lb_backends"].items())
    return [u32.from_buffer_copy(key).value for key, each in records if each.flags & USABLE]
