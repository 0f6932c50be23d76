# SPDX-License-Identifier: Apache-2.0
"""Reading the ring of flow records while a program writes it."""

import struct
import threading
import time
from collections.abc import Callable

import pytest

from ebpflb.dataplane.flows.records import FlowRing, is_readable
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import KernelMap
from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.layout.structs import FLOW_RECORD_VERSION, LbFlowRecord
from ebpflb.errors import MapError
from tests.bpf.harness.loading import Loaded, load_wrapper
from tests.bpf.harness.programs import prog_test_run
from tests.descriptors import descriptors

# struct __sk_buff: mark at 8, priority at 32.
_CONTEXT = struct.Struct("=8xI20xI156x")
# One page; an 8-byte header precedes each record.
ROOM = 4096 // (8 + 136)

Write = Callable[..., int]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load_wrapper(tmp_path_factory.mktemp("bpffs"), "ring.c", ["lb_host_ingress"])


@pytest.fixture
def ring_map(loaded: Loaded) -> tuple[KernelMap, Write]:
    """An empty ring, and a program that writes it."""
    source = loaded.maps["lb_flows"]
    assert isinstance(source, KernelMap)
    FlowRing(source).read()

    def write(count: int = 1, *, version: int = FLOW_RECORD_VERSION, service: int = 0) -> int:
        context = _CONTEXT.pack(version, service)
        program = loaded.programs["lb_host_ingress"]
        return prog_test_run(program, bytes(64), ctx=context, repeat=count).retval

    return source, write


def services(records: list[bytes]) -> list[int]:
    return [LbFlowRecord.from_buffer_copy(record).service for record in records]


def test_records_come_out_as_they_were_written_and_once(ring_map):
    source, write = ring_map
    ring = FlowRing(source)
    assert ring.read() == []
    for service in (7, 8, 9):
        assert write(service=service) == 0
    records = ring.read()
    assert services(records) == [7, 8, 9]
    assert abs(LbFlowRecord.from_buffer_copy(records[0]).time - time.monotonic_ns()) < 10**9
    assert ring.read() == []


def test_another_version_is_known_as_such(ring_map):
    source, write = ring_map
    write()
    write(version=FLOW_RECORD_VERSION + 1)
    assert [is_readable(record) for record in FlowRing(source).read()] == [True, False]


def test_a_full_ring_refuses_records_until_it_was_read(ring_map):
    source, write = ring_map
    ring = FlowRing(source)
    assert write(ROOM) == 0
    assert write() == 1
    assert len(ring.read()) == ROOM
    assert write(service=5) == 0
    assert services(ring.read()) == [5]


def test_what_one_reader_left_the_next_one_gets(ring_map):
    source, write = ring_map
    first = FlowRing(source)
    write(service=1)
    assert services(first.read()) == [1]
    write(service=2)
    first.close()
    assert services(FlowRing(source).read()) == [2]


def test_nothing_is_lost_or_torn_while_a_program_writes(ring_map):
    source, write = ring_map
    ring, wrote, read = FlowRing(source), 2000, []

    def fill() -> None:
        for service in range(1, wrote + 1):
            while write(service=service):
                time.sleep(0)

    writer = threading.Thread(target=fill)
    writer.start()
    while writer.is_alive():
        read += services(ring.read())
    read += services(ring.read())
    assert read == list(range(1, wrote + 1))


def test_a_map_that_is_no_ring_is_an_error():
    source = KernelMap(libbpf.map_create(MapType.ARRAY, "lb_flows", 4, 8, 1))
    with pytest.raises(MapError, match="map lb_flows: mapping failed: Invalid argument"):
        FlowRing(source)


def test_closing_gives_everything_back(ring_map):
    source, _ = ring_map
    before = descriptors()
    ring = FlowRing(source)
    assert descriptors() - before
    ring.close()
    assert not descriptors() - before
