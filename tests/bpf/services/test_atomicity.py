# SPDX-License-Identifier: Apache-2.0
"""A frontend switches from one set of backends to the next atomically for readers on every core."""

from collections.abc import Callable, Sequence
from ipaddress import IPv4Address

import pytest

from ebpflb.dataplane.layout.enums import DescFlag
from ebpflb.dataplane.layout.structs import LbAddr, LbDesc, LbRange, LbSourceRange
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import Protocol, parse_address
from ebpflb.model.plan import (
    Backend,
    Choice,
    Frontend,
    FrontendKey,
    FrontendType,
    IfEmpty,
)
from ebpflb.model.service import ServiceName, ServicePortName, TrafficPolicy
from ebpflb.model.source_ranges import Prefix
from tests.bpf.harness.datapath import Datapath, frontend_key
from tests.bpf.harness.loading import Loaded, load_wrapper
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import End
from tests.bpf.harness.readers import readers, tallies, write_until

ENOUGH_LOOKUPS = 10_000_000
ENOUGH_CHANGES = 400
VIP = End("10.96.0.10", 80)
SERVICE = ServiceName("default", "web")
# Sets are numbered from here on: their backends have the number as port.
FIRST, SETS = 1000, 50000


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load_wrapper(tmp_path_factory.mktemp("bpffs"), "lookup.c", ["lb_pod_ingress"])


@pytest.fixture
def datapath(wrapper: Loaded) -> Datapath:
    datapath = Datapath(wrapper)
    datapath.reset()
    key = frontend_key(VIP, Protocol.TCP)
    datapath.maps["lb_wanted"].update(bytes(4), bytes(key))
    datapath.maps["lb_lookups"].update(bytes(4), bytes(datapath.maps["lb_lookups"].value_size))
    return datapath


class Seen:
    """What all lookups saw."""

    def __init__(self, datapath: Datapath) -> None:
        self.found, self.missed, self.mixed = tallies(datapath.maps["lb_lookups"])


def write_sets_until(is_enough: Callable[[int], bool], write: Callable[[int], None]) -> int:
    """Write one set after the other; returns the number of sets."""
    return write_until(is_enough, lambda changes: write(FIRST + changes % SETS))


def frontend(number_of_set: int) -> Frontend:
    """The frontend with the set of this number: one to nine backends, for one client."""
    backends = tuple(
        Backend(parse_address(f"10.1.0.{i + 1}"), number_of_set, local=True, terminating=False)
        for i in range(1 + number_of_set % 9)
    )
    choice = Choice(backends, IfEmpty.REFUSE)
    return Frontend(
        key=FrontendKey(parse_address(VIP.address), VIP.port, Protocol.TCP),
        type=FrontendType.CLUSTER_IP,
        service=ServicePortName(*SERVICE, "", Protocol.TCP),
        local=choice,
        others=choice,
        internal_policy=TrafficPolicy.CLUSTER,
        external_policy=TrafficPolicy.CLUSTER,
        affinity_timeout=number_of_set,
        allowed_sources=(client(number_of_set),),
    )


def client(number_of_set: int) -> Prefix:
    """A set's only client: the set's number as an IPv4 address."""
    address = parse_address(str(IPv4Address(number_of_set)))
    return Prefix(address, 128)


def enough(datapath: Datapath) -> Callable[[int], bool]:
    """Enough changes and enough lookups."""
    return lambda changes: changes >= ENOUGH_CHANGES and Seen(datapath).found >= ENOUGH_LOOKUPS


@pytest.mark.slow
def test_no_lookup_sees_a_mixture_or_nothing(datapath: Datapath, wrapper: Loaded):
    sync = Sync(datapath.maps, grace=0)
    sync.load()
    sync.apply({SERVICE: [frontend(FIRST)]})

    def write(number_of_set: int) -> None:
        while sync.apply({SERVICE: [frontend(number_of_set)]}):
            sync.collect()  # Full of replaced elements, which the kernel has to free first.

    with readers(wrapper.programs["lb_pod_ingress"]):
        changes = write_sets_until(enough(datapath), write)

    seen = Seen(datapath)
    assert (seen.missed, seen.mixed) == (0, 0)
    assert seen.found >= ENOUGH_LOOKUPS
    assert changes >= ENOUGH_CHANGES


def backends_of(datapath: Datapath, numbers: Sequence[int]) -> None:
    """Each set has one backend, whose index is its number minus FIRST plus 1."""
    for number_of_set in numbers:
        datapath.backend(End("10.1.0.1", number_of_set), Protocol.TCP)


def test_a_writer_that_changes_a_descriptor_in_place_is_found_out(
    datapath: Datapath, wrapper: Loaded
):
    backends_of(datapath, [FIRST, FIRST + 1])
    datapath.frontend(VIP, Protocol.TCP, local=[1])

    def write(number_of_set: int) -> None:
        which = number_of_set % 2
        datapath.maps["lb_slots"].update(u32(1), u32(1 + which))
        key, ranges = frontend_key(VIP, Protocol.TCP), LbRange(1, 1, 1)
        desc = LbDesc(frontend=key, local=ranges, others=ranges, affinity_timeout=FIRST + which)
        datapath.maps["lb_descs"].update(u32(1), bytes(desc))

    with readers(wrapper.programs["lb_pod_ingress"]):
        write_sets_until(lambda _: Seen(datapath).mixed > 0, write)

    assert Seen(datapath).mixed > 0


def test_a_writer_that_changes_source_ranges_in_place_is_found_out(
    datapath: Datapath, wrapper: Loaded
):
    backends_of(datapath, [FIRST])
    index = datapath.frontend(VIP, Protocol.TCP, local=[1])
    key, ranges = frontend_key(VIP, Protocol.TCP), LbRange(1, 1, 1)
    desc = LbDesc(
        frontend=key, local=ranges, others=ranges, affinity_timeout=FIRST, source_ranges=1
    )
    desc.flags = DescFlag.LB_DESC_SOURCE_RANGES
    datapath.maps["lb_descs"].update(u32(index), bytes(desc))
    address, length = client(FIRST)
    element = bytes(LbSourceRange(32 + length, 1, LbAddr.from_buffer_copy(address)))
    table = datapath.maps["lb_src_ranges"]

    def write(_: int) -> None:
        table.update(element, b"\1")
        table.delete(element)

    with readers(wrapper.programs["lb_pod_ingress"]):
        write_sets_until(lambda _: Seen(datapath).mixed > 0, write)

    assert Seen(datapath).mixed > 0


def test_a_writer_that_replaces_a_hash_element_is_found_out(datapath: Datapath, wrapper: Loaded):
    backends_of(datapath, [FIRST])
    index = datapath.frontend(VIP, Protocol.TCP, local=[1])
    key = bytes(frontend_key(VIP, Protocol.TCP))
    others = [bytes(frontend_key(End("10.96.0.11", port), Protocol.TCP)) for port in range(1, 60)]
    table = datapath.maps["lb_frontends"]

    def write(number_of_set: int) -> None:
        table.delete(key)
        table.update(others[number_of_set % len(others)], u32(60))
        table.update(key, u32(index))
        table.delete(others[number_of_set % len(others)])

    with readers(wrapper.programs["lb_pod_ingress"]):
        write_sets_until(lambda _: Seen(datapath).missed > 0, write)

    assert Seen(datapath).missed > 0
