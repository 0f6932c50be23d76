# SPDX-License-Identifier: Apache-2.0
"""frontend.h and backend.h: from an address and a port to a backend, and what counts as a miss."""

import pytest

from ebpflb.dataplane.layout.enums import BackendFlag, IfEmptyCode
from ebpflb.dataplane.layout.structs import LbFrontendKey, LbRange
from ebpflb.model.address import Protocol
from tests.bpf.harness.datapath import Datapath, frontend_key
from tests.bpf.harness.loading import Loaded, load_wrapper
from tests.bpf.harness.numbers import number
from tests.bpf.harness.packets import IPV4, End, Kind
from tests.bpf.harness.programs import prog_test_run

FOUND, MISSED = 0, 1
FRAME = bytes(64)
LOOKUPS = 1_000_000
# Chi-square with 6 degrees of freedom exceeds this once in 10^15 runs.
UNLIKELY = 85.0


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    names = ["lb_pod_ingress", "lb_pod_egress"]
    return load_wrapper(tmp_path_factory.mktemp("bpffs"), "lookup.c", names)


@pytest.fixture
def lookup(wrapper: Loaded) -> Datapath:
    """Empty maps."""
    datapath = Datapath(wrapper)
    datapath.reset()
    return datapath


def look_up(datapath: Datapath, wrapper: Loaded, key: LbFrontendKey, times: int = 1) -> int:
    datapath.maps["lb_wanted"].update(bytes(4), bytes(key))
    return prog_test_run(wrapper.programs["lb_pod_ingress"], FRAME, repeat=times).retval


def look_up_node_port(datapath: Datapath, wrapper: Loaded, key: LbFrontendKey) -> int:
    datapath.maps["lb_wanted"].update(bytes(4), bytes(key))
    return prog_test_run(wrapper.programs["lb_pod_egress"], FRAME).retval


def serve(datapath: Datapath, kind: Kind, count: int = 1) -> End:
    """A frontend with this many backends, whose indices are 1 to `count`."""
    backends = [datapath.backend(End(kind.net.remote, 8000 + i), kind.proto) for i in range(count)]
    frontend = End(kind.net.cluster_ip, 80)
    datapath.frontend(frontend, kind.proto, local=backends)
    return frontend


def test_a_frontend_is_found(lookup: Datapath, wrapper: Loaded, kind: Kind):
    frontend = serve(lookup, kind)
    assert look_up(lookup, wrapper, frontend_key(frontend, kind.proto)) == FOUND


def test_another_port_address_or_protocol_is_missed(lookup: Datapath, wrapper: Loaded, kind: Kind):
    frontend = serve(lookup, kind)
    others = {Protocol.TCP: Protocol.UDP, Protocol.UDP: Protocol.TCP}
    for end, proto in (
        (frontend._replace(port=81), kind.proto),
        (frontend._replace(address=kind.net.external_ip), kind.proto),
        (frontend, others[kind.proto]),
    ):
        assert look_up(lookup, wrapper, frontend_key(end, proto)) == MISSED


def test_a_frontend_whose_word_is_zero_is_missed(lookup: Datapath, wrapper: Loaded, kind: Kind):
    frontend = serve(lookup, kind)
    lookup.maps["lb_current"].update((1).to_bytes(4, "little"), bytes(8))
    assert look_up(lookup, wrapper, frontend_key(frontend, kind.proto)) == MISSED


def test_an_index_that_was_given_to_another_frontend_is_missed(
    lookup: Datapath, wrapper: Loaded, kind: Kind
):
    frontend = serve(lookup, kind)
    other = frontend_key(End(kind.net.external_ip, 80), kind.proto)
    lookup.write_desc(1, other, LbRange(1, 1, IfEmptyCode.LB_EMPTY_REFUSE), LbRange())
    assert look_up(lookup, wrapper, frontend_key(frontend, kind.proto)) == MISSED


@pytest.mark.parametrize("field", ["port", "proto"])
def test_a_descriptor_that_differs_in_one_field_is_another_ones(
    lookup: Datapath, wrapper: Loaded, kind: Kind, field: str
):
    frontend = serve(lookup, kind)
    key = frontend_key(frontend, kind.proto)
    setattr(key, field, getattr(key, field) + 1)
    lookup.write_desc(1, key, LbRange(1, 1, IfEmptyCode.LB_EMPTY_REFUSE), LbRange())
    assert look_up(lookup, wrapper, frontend_key(frontend, kind.proto)) == MISSED


def test_numbers_out_of_range_are_missed(lookup: Datapath, wrapper: Loaded, kind: Kind):
    frontend = serve(lookup, kind)
    key = frontend_key(frontend, kind.proto)
    for word in (10**6, 2**31, 2**40):
        lookup.maps["lb_current"].update((1).to_bytes(4, "little"), word.to_bytes(8, "little"))
        assert look_up(lookup, wrapper, key) == MISSED
    lookup.write_desc(1, key, LbRange(10**6, 5, IfEmptyCode.LB_EMPTY_REFUSE), LbRange())
    assert look_up(lookup, wrapper, key) == MISSED
    lookup.maps["lb_frontends"].update(bytes(key), (10**6).to_bytes(4, "little"))
    assert look_up(lookup, wrapper, key) == MISSED


def test_the_wildcards_of_the_families_differ(lookup: Datapath, wrapper: Loaded):
    for wildcard, served, other in (
        ("0.0.0.0", "192.0.2.1", "2001:db8::1"),
        ("::", "2001:db8::1", "192.0.2.1"),
    ):
        lookup.reset()
        lookup.frontend(End(wildcard, 30080), Protocol.TCP)
        keys = [frontend_key(End(address, 30080), Protocol.TCP) for address in (served, other)]
        assert [look_up_node_port(lookup, wrapper, key) for key in keys] == [FOUND, MISSED]


# Backends


def chosen(datapath: Datapath, count: int) -> list[int]:
    """How often each of the backends 1 to `count` was chosen."""
    return [datapath.counts("lb_count_back", index)[0] for index in range(1, count + 1)]


def test_backends_are_chosen_evenly(lookup: Datapath, wrapper: Loaded):
    kind = Kind(IPV4, Protocol.TCP)
    key = frontend_key(serve(lookup, kind, count=7), kind.proto)
    look_up(lookup, wrapper, key, times=LOOKUPS)
    counts = chosen(lookup, 7)
    assert sum(counts) == LOOKUPS
    expected = LOOKUPS / 7
    assert sum((count - expected) ** 2 / expected for count in counts) < UNLIKELY


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_all_backends_are_chosen_and_no_other(lookup: Datapath, wrapper: Loaded, count: int):
    kind = Kind(IPV4, Protocol.TCP)
    key = frontend_key(serve(lookup, kind, count), kind.proto)
    outside = lookup.backend(End("10.9.9.9", 1), kind.proto, flags=BackendFlag.LB_BACKEND_LOCAL)
    # Probability that one of a hundred is never chosen: 10^-19.
    look_up(lookup, wrapper, key, times=50 * 100)
    assert all(chosen(lookup, count))
    assert lookup.counts("lb_count_back", outside) == (0, 0, 0)


@pytest.mark.parametrize("if_empty", list(IfEmptyCode))
def test_nothing_is_chosen_from_an_empty_range(
    lookup: Datapath, wrapper: Loaded, if_empty: IfEmptyCode
):
    frontend = End(IPV4.cluster_ip, 80)
    lookup.frontend(frontend, Protocol.TCP, if_empty=if_empty)
    assert look_up(lookup, wrapper, frontend_key(frontend, Protocol.TCP)) == MISSED
    value = lookup.maps["lb_lookups"].lookup(bytes(4))
    assert value
    assert number(value[8:16]) <= 1
