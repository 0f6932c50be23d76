# SPDX-License-Identifier: Apache-2.0
"""Addresses are added and removed, and reuse hash places and indices; none gets another one's
flags.
"""

import random

import pytest

from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.layout.records import AddrRecord
from ebpflb.dataplane.services.addresses import DestFilter, fold
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import Address, parse_address
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import Loaded, load_wrapper
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.readers import readers, tallies, write_until

KINDS = (
    AddrFlag.LB_ADDR_NODE,
    AddrFlag.LB_ADDR_NODE_PORT,
    AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT,
)
ASKED, PLACES = 32, 8
ENOUGH_ANSWERS = 10_000_000
ENOUGH_CHANGES = 200


def asked(place: int, which: int) -> Address:
    """Addresses of both families; those of one family and place share a place in lb_dest_filter."""
    high = 0xC000 + which
    prefix = "::ffff:" if which % 2 else "2001:db8::"
    return parse_address(f"{prefix}{high:x}:{high ^ place:x}")


ADDRESSES = {
    asked(index % PLACES, index // PLACES): KINDS[index % len(KINDS)] for index in range(ASKED)
}


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load_wrapper(tmp_path_factory.mktemp("bpffs"), "addresses.c", ["lb_pod_ingress"])


@pytest.fixture
def datapath(wrapper: Loaded) -> Datapath:
    datapath = Datapath(wrapper)
    datapath.reset()
    datapath.clear("lb_dest_filter")
    for index, (address, flags) in enumerate(ADDRESSES.items()):
        datapath.maps["lb_expected"].update(u32(index), AddrRecord(flags, address).pack())
    datapath.maps["lb_results"].update(bytes(4), bytes(datapath.maps["lb_results"].value_size))
    return datapath


class Answers:
    """Lookups that were right, that did not know an address, and that were wrong."""

    def __init__(self, datapath: Datapath) -> None:
        self.right, self.unknown, self.wrong = tallies(datapath.maps["lb_results"])


def test_the_addresses_share_places():
    assert len(ADDRESSES) == ASKED
    assert len({fold(address) for address in ADDRESSES}) == 2 * PLACES


@pytest.mark.slow
def test_no_address_gets_the_flags_of_another(datapath: Datapath, wrapper: Loaded):
    sync = Sync(datapath.maps, grace=0)
    sync.load()
    chance = random.Random(1)

    def write(_: int) -> None:
        sync.set_node_addresses(dict(chance.sample(sorted(ADDRESSES.items()), ASKED // 2)))
        sync.forget(sync.idle())
        sync.collect()

    def is_enough(changes: int) -> bool:
        return changes >= ENOUGH_CHANGES and Answers(datapath).right >= ENOUGH_ANSWERS

    with readers(wrapper.programs["lb_pod_ingress"]):
        changes = write_until(is_enough, write)

    seen = Answers(datapath)
    assert seen.wrong == 0
    assert min(seen.right, seen.unknown) >= ENOUGH_ANSWERS // 10
    assert changes >= ENOUGH_CHANGES


def test_a_writer_that_gives_an_index_away_at_once_is_found_out(
    datapath: Datapath, wrapper: Loaded
):
    two = list(ADDRESSES.items())[::PLACES][:3:2]
    assert len({fold(address) for address, _ in two}) == 1
    places = DestFilter(datapath.maps["lb_dest_filter"])
    places.name(two[0][0], 1)
    places.flush()

    def write(changes: int) -> None:
        address, flags = two[changes % 2]
        datapath.maps["lb_addr_flags"].update(u32(1), AddrRecord(flags, address).pack())

    with readers(wrapper.programs["lb_pod_ingress"]):
        write_until(lambda _: Answers(datapath).wrong > 0, write)

    assert Answers(datapath).wrong > 0
