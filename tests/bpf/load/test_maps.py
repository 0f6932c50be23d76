# SPDX-License-Identifier: Apache-2.0
"""Maps of the running kernel through libbpf, and a sync on such maps."""

import os
import time
from collections.abc import Callable, Iterator
from errno import E2BIG, EEXIST, EINVAL, EOPNOTSUPP
from mmap import PAGESIZE
from pathlib import Path
from struct import pack

import pytest

from ebpflb.dataplane.flows.expiry import Expired, Expiry
from ebpflb.dataplane.kernel import libbpf, libc
from ebpflb.dataplane.kernel.maps import KernelMap, MapSet, open_maps
from ebpflb.dataplane.kernel.uapi import Exist, MapType
from ebpflb.dataplane.layout.enums import CtState
from ebpflb.dataplane.layout.structs import LbConntrack, LbSettings
from ebpflb.dataplane.services.sync import Sync
from ebpflb.dataplane.view.snapshot import read_snapshot
from ebpflb.errors import MapError, PinError
from ebpflb.model.address import Protocol
from ebpflb.model.flow import Counts
from ebpflb.model.service import ServiceName
from tests.bpf.harness.numbers import map_flags
from tests.memory_maps import SPECS
from tests.unit.dataplane.desired import ALLOWED, backends, by_service, frontend, key, named
from tests.unit.dataplane.flows.ends import CLIENT, POD, VIP, flow_tuple
from tests.unit.dataplane.programs import look_up, offer_of

pytestmark = pytest.mark.bpf

MakeMap = Callable[..., KernelMap]


@pytest.fixture(params=[True, False], ids=["batch", "single"])
def make_map(request: pytest.FixtureRequest) -> Iterator[MakeMap]:
    """Creates maps and closes them at the end, with batch operations or as on a kernel without
    them.
    """
    made: list[KernelMap] = []

    def make(kind: MapType, key_size: int, value_size: int, max_entries: int) -> KernelMap:
        flags = map_flags(kind)
        fd = libbpf.map_create(kind, "lb_test", key_size, value_size, max_entries, flags)
        made.append(KernelMap(fd, batch=request.param))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def maps() -> MapSet:
    """All maps of this program, small."""
    small = {name: min(spec.max_entries, 64) for name, spec in SPECS.items()}
    small["lb_flows"] = PAGESIZE
    small["lb_dest_filter"] = SPECS["lb_dest_filter"].max_entries
    return {name: own_map(name, size) for name, size in small.items()}


def own_map(name: str, max_entries: int) -> KernelMap:
    kind, key_size, value_size, _ = SPECS[name]
    fd = libbpf.map_create(kind, name, key_size, value_size, max_entries, map_flags(kind))
    return KernelMap(fd)


def elements(*numbers: int) -> list[tuple[bytes, bytes]]:
    return [(pack("=I", number), pack("=Q", number * number)) for number in numbers]


@pytest.mark.parametrize("kind", [MapType.HASH, MapType.LRU_HASH])
def test_a_hash_gives_back_what_it_was_given(make_map: MakeMap, kind: MapType):
    table = make_map(kind, 4, 8, 5000)
    expected = elements(*range(3000))
    table.update_batch(expected)
    assert sorted(table.items()) == sorted(expected)
    assert table.lookup(pack("=I", 7)) == pack("=Q", 49)
    assert table.lookup(pack("=I", 5000)) is None
    assert (table.name, table.key_size, table.value_size) == ("lb_test", 4, 8)
    assert (table.max_entries, table.cpus) == (5000, 1)


def test_deleting_skips_what_is_not_there(make_map: MakeMap):
    table = make_map(MapType.HASH, 4, 8, 10)
    table.update_batch(elements(*range(6)))
    table.delete_batch([pack("=I", number) for number in (9, 0, 8, 8, 1, 2, 7)])
    assert sorted(table.items()) == elements(3, 4, 5)
    assert table.delete(pack("=I", 3))
    assert not table.delete(pack("=I", 3))


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_a_trie_gives_back_and_loses_what_was_asked(make_map: MakeMap, limit: int):
    table = make_map(MapType.LPM_TRIE, 24, 1, 1000)
    numbers = [(length, ranges) for ranges in range(1, 7) for length in range(32, 161)]
    prefixes = [(pack("=II16x", *each), b"\1") for each in numbers]
    table.update_batch(prefixes)
    chunks = list(table.chunks(limit))
    assert sum(chunk.size for chunk in chunks) == len(prefixes)
    assert sorted(table.items()) == sorted(prefixes)
    table.delete_batch([key for key, _ in prefixes[::2]])
    assert sorted(table.items()) == sorted(prefixes[1::2])


@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_chunks_grow_where_a_bucket_needs_it(make_map: MakeMap, limit: int):
    table = make_map(MapType.HASH, 4, 8, 500)
    table.update_batch(elements(*range(500)))
    chunks = list(table.chunks(limit))
    keys = b"".join(chunk.keys for chunk in chunks)
    assert sum(chunk.size for chunk in chunks) == 500
    assert {keys[at : at + 4] for at in range(0, len(keys), 4)} == {
        key for key, _ in elements(*range(500))
    }


def test_deleting_between_chunks_loses_nothing(make_map: MakeMap):
    table = make_map(MapType.HASH, 4, 8, 1000)
    table.update_batch(elements(*range(1000)))
    seen = 0
    for chunk in table.chunks(50):
        seen += chunk.size
        table.delete_batch([chunk.keys[at : at + 4] for at in range(0, len(chunk.keys), 4)])
    assert seen == 1000
    assert list(table.items()) == []


def test_an_array_has_all_its_elements_in_order(make_map: MakeMap):
    table = make_map(MapType.ARRAY, 4, 8, 100)
    table.update_batch(elements(3, 5))
    assert [chunk.size for chunk in table.chunks(40)] == [40, 40, 20]
    assert list(table.items()) == [
        (pack("=I", index), pack("=Q", index * index if index in (3, 5) else 0))
        for index in range(100)
    ]


def test_a_per_cpu_array_has_the_values_of_all_cpus_side_by_side(make_map: MakeMap):
    table = make_map(MapType.PERCPU_ARRAY, 4, 12, 3)
    cpus = libbpf.possible_cpus()
    assert (table.cpus, table.value_size) == (cpus, cpus * 16)
    value = b"".join(pack("=QII", cpu, cpu, 0) for cpu in range(cpus))
    table.update_batch([(pack("=I", 1), value)])
    assert table.lookup(pack("=I", 1)) == value
    assert [value for _, value in table.items()] == [bytes(16 * cpus), value, bytes(16 * cpus)]


def test_errors_name_map_operation_and_errno(make_map: MakeMap):
    table = make_map(MapType.HASH, 4, 8, 2)
    table.update_batch(elements(1, 2))
    for attempt, operation, errno in (
        (lambda: table.update_batch(elements(3)), "update", E2BIG),
        (lambda: table.update(*elements(1)[0], exist=Exist.NO), "update", EEXIST),
        (lambda: make_map(MapType.ARRAY, 4, 8, 1).delete_batch([bytes(4)]), "delete", EINVAL),
    ):
        with pytest.raises(MapError) as error:
            attempt()
        assert (error.value.map_name, error.value.operation) == ("lb_test", operation)
        assert error.value.errno == errno


def test_a_closed_map_says_so():
    table = own_map("lb_slots", 1)
    table.close()
    table.close()
    with pytest.raises(MapError, match="Bad file descriptor"):
        table.lookup(bytes(4))
    with pytest.raises(MapError, match="Bad file descriptor"):
        list(table.items())


def test_pinned_maps_are_opened_by_name(bpffs: Path):
    directory = bpffs / "maps"
    directory.mkdir()
    fd = libbpf.map_create(MapType.HASH, "other", 4, 8, 1)
    libbpf.obj_pin(fd, directory / "lb_pinned")
    with pytest.raises(FileExistsError, match="lb_pinned"):
        libbpf.obj_pin(fd, directory / "lb_pinned")
    os.close(fd)
    maps = open_maps(directory)
    assert {name: each.name for name, each in maps.items()} == {"lb_pinned": "lb_pinned"}
    with pytest.raises(PinError, match="nowhere"):
        open_maps(bpffs / "nowhere")


def test_the_kernel_grants_a_grace_period_without_the_fallback(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    libc.membarrier()
    assert slept == []


def test_a_sync_converges_on_kernel_maps_and_a_restart_changes_nothing(maps: MapSet):
    web = frontend(choice=backends("10.1.0.1", "10.1.0.2"), allowed_sources=ALLOWED)
    other = frontend("10.96.0.2", backends("fd00::1"), service=named("other"))
    sync = Sync(maps, grace=0)
    assert sync.apply(by_service(web, other)) == {}
    changed = frontend(choice=backends("10.1.0.1", "10.1.0.3"), allowed_sources=ALLOWED[1:])
    assert sync.apply({ServiceName("default", "other"): (), **by_service(changed)}) == {}
    sync.collect()
    found = look_up(maps, key("10.96.0.1"))
    assert found
    assert found.offer == offer_of(changed)
    assert look_up(maps, key("10.96.0.2")) is None
    assert sync.usage()["lb_backends"].used == 2
    assert sync.usage()["lb_src_ranges"].used == len(list(maps["lb_src_ranges"].items())) == 1
    before = contents(maps)
    assert Sync(maps).resync(by_service(changed)) == {}
    assert contents(maps) == before


def contents(maps: MapSet) -> dict[str, list[tuple[bytes, bytes]]]:
    return {name: sorted(each.items()) for name, each in maps.items()}


def test_counters_of_all_cpus_are_added(maps: MapSet):
    Sync(maps).apply(by_service(frontend(choice=backends("10.1.0.1"))))
    cpus = libbpf.possible_cpus()
    value = b"".join(pack("=10Q", 1, cpu, *range(8)) for cpu in range(cpus))
    maps["lb_count_back"].update(bytes(4), value)
    snapshot = read_snapshot(maps)
    ((backend,),) = snapshot.backends.values()
    assert snapshot.counts_of_backend(backend) == Counts(
        cpus, sum(range(cpus)), *(cpus * each for each in range(8))
    )


def test_flows_expire_by_the_clock_of_the_kernel(maps: MapSet):
    timeouts = LbSettings(tcp_closed_timeout=10, tcp_established_timeout=100)
    maps["lb_settings"].update(bytes(4), bytes(timeouts))
    now = time.monotonic_ns()
    for port, age, state in (
        (1, 50, CtState.LB_CT_ESTABLISHED),
        (2, 101, CtState.LB_CT_ESTABLISHED),
        (3, 50, CtState.LB_CT_CLOSED),
    ):
        original = flow_tuple(CLIENT, port, VIP, 80, Protocol.TCP)
        to = flow_tuple(CLIENT, port, POD, 8080, Protocol.TCP)
        entry = LbConntrack(to=to, last_seen=now - age * 10**9, state=state)
        maps["lb_conntrack"].update(bytes(original), bytes(entry))
    assert Expiry(maps).step() == Expired(3, 2, frozenset())
    (left,) = maps["lb_conntrack"].items()
    assert left[0] == bytes(flow_tuple(CLIENT, 1, VIP, 80, Protocol.TCP))


@pytest.mark.parametrize("errno", [524, EOPNOTSUPP, EINVAL])
def test_a_kernel_without_batch_operations_is_noticed(monkeypatch: pytest.MonkeyPatch, errno: int):
    def refuse(*_: object) -> None:
        raise OSError(errno, "refused")

    for name in ("map_update_batch", "map_delete_batch", "map_lookup_batch"):
        monkeypatch.setattr(libbpf, name, refuse)
    tables = [own_map("lb_frontends", 9) for _ in range(3)]
    places = [(bytes(19) + bytes([number]), bytes(4)) for number in range(3)]
    tables[0].update_batch(places)
    tables[1].delete_batch([places[0][0]])
    assert list(tables[2].items()) == []
    assert sorted(tables[0].items()) == places
    tables[0].delete_batch([key for key, _ in places[1:]])
    assert list(tables[0].items()) == places[:1]
