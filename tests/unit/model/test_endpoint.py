# SPDX-License-Identifier: Apache-2.0
"""The endpoints of a Service port: union over slices, each address and port once."""

import pytest

from ebpflb.model.address import Family, Protocol, format_address
from ebpflb.model.endpoint import EndpointSlice, PackedEndpoints, SlicePort, endpoints_of
from ebpflb.model.service import ServicePort
from tests.builders import (
    address,
    endpoint,
    endpoint_slice,
    port_name,
    service_port,
    terminating,
)

HTTP = service_port(name=port_name("http"))


def found(port: ServicePort, *slices: EndpointSlice) -> list[str]:
    return [
        f"{format_address(each.endpoint.address)}:{each.port}"
        for each in endpoints_of(port, slices)
    ]


def test_slices_add_up():
    slices = [
        endpoint_slice("web-1", endpoint("10.1.0.1"), endpoint("10.1.0.2")),
        endpoint_slice("web-2", endpoint("10.1.0.3")),
    ]
    assert found(service_port(), *slices) == ["10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"]


@pytest.mark.parametrize(
    ("slice_port", "matches"),
    [
        (SlicePort("http", Protocol.TCP, 8080), True),
        (SlicePort("http", Protocol.UDP, 8080), False),
        (SlicePort("https", Protocol.TCP, 8080), False),
        (SlicePort("", Protocol.TCP, 8080), False),
    ],
)
def test_ports_belong_together_by_name_and_protocol(slice_port: SlicePort, matches: bool):
    piece = endpoint_slice("web-1", endpoint(), ports=(slice_port,))
    assert bool(found(HTTP, piece)) is matches


def test_the_empty_name_is_a_name():
    assert found(service_port(), endpoint_slice("web-1", endpoint())) == ["10.1.0.1:8080"]


def test_slices_may_give_one_port_different_numbers():
    slices = [
        endpoint_slice("web-1", endpoint("10.1.0.1"), ports=(SlicePort("", Protocol.TCP, 8080),)),
        endpoint_slice("web-2", endpoint("10.1.0.2"), ports=(SlicePort("", Protocol.TCP, 9090),)),
    ]
    assert found(service_port(), *slices) == ["10.1.0.1:8080", "10.1.0.2:9090"]


def test_one_address_with_two_ports_is_two_endpoints():
    ports = (SlicePort("", Protocol.TCP, 8080), SlicePort("", Protocol.TCP, 9090))
    piece = endpoint_slice("web-1", endpoint(), ports=ports)
    assert found(service_port(), piece) == ["10.1.0.1:8080", "10.1.0.1:9090"]


def test_the_other_family_does_not_count():
    piece = endpoint_slice("web-1", endpoint("fd01::1"), family=Family.IPV6)
    assert found(service_port(), piece) == []
    assert found(service_port("fd00::10"), piece) == ["fd01::1:8080"]


def test_of_equal_endpoints_the_first_stays():
    first, second = endpoint(node="node-a", ready=False), terminating(node="node-b")
    slices = [endpoint_slice("web-1", first), endpoint_slice("web-2", second)]
    assert [each.endpoint for each in endpoints_of(service_port(), slices)] == [first]


@pytest.mark.parametrize("same_slice", [True, False])
@pytest.mark.parametrize("running_first", [True, False])
def test_a_running_pod_is_not_hidden_by_its_terminating_twin(same_slice: bool, running_first: bool):
    running, ending = endpoint(node="node-a"), terminating(node="node-b")
    pair = [running, ending] if running_first else [ending, running]
    if same_slice:
        slices = [endpoint_slice("web-1", *pair)]
    else:
        slices = [endpoint_slice(f"web-{index}", each) for index, each in enumerate(pair)]
    assert [each.endpoint for each in endpoints_of(service_port(), slices)] == [running]


def test_an_unready_pod_that_stays_hides_a_terminating_one():
    starting = endpoint(ready=False, serving=False)
    piece = endpoint_slice("web-1", terminating(), starting)
    assert [each.endpoint for each in endpoints_of(service_port(), [piece])] == [starting]


@pytest.mark.parametrize(
    ("ready", "serving", "ends", "expected"),
    [
        (False, True, True, True),
        (True, True, True, False),
        (False, False, True, False),
        (False, True, False, False),
    ],
)
def test_last_resort_is_what_serves_unready_while_it_terminates(
    ready: bool, serving: bool, ends: bool, expected: bool
):
    each = endpoint(ready=ready, serving=serving, terminating=ends)
    assert each.is_last_resort is expected


def test_defaults_are_those_of_the_api():
    each = endpoint("10.1.0.9", None)
    assert (each.address, each.ready, each.serving) == (address("10.1.0.9"), True, True)
    assert not each.terminating


def test_endpoints_come_out_as_they_went_in():
    every = (
        endpoint("10.1.0.1", "node-a", pod="default/a", zone_hints=("z1",)),
        endpoint("fd00::1", None, ready=False, node_hints=("node-b",), zone="z2"),
    )
    packed = PackedEndpoints(every)
    assert packed == every
    assert packed == PackedEndpoints(iter(every)) != PackedEndpoints(every[::-1])
    assert hash(packed) == hash(PackedEndpoints(every))
    assert list(packed.addresses) == [each.address for each in every]
    assert (len(packed), every[1] in packed, endpoint("10.1.0.2") in packed) == (2, True, False)


def test_of_several_with_an_address_the_last_is_found_and_no_other():
    # Side by side, the second half of one address and the first of the next are another.
    one, two = "::1:0:0:0:0", "0:0:0:2::"
    middle = address("::2")
    every = [endpoint(one, pod="a/1"), endpoint(two), endpoint("::2", pod="a/2"), endpoint(one)]
    packed = PackedEndpoints([*every, endpoint(two, pod="a/3")])
    assert packed.last_at(middle) == every[2]
    assert packed.last_at(address(one)) == every[3]
    assert packed.last_at(address(two)) == endpoint(two, pod="a/3")
    assert packed.last_at(address("::3")) is None
    assert PackedEndpoints(every[:2]).last_at(middle) is None
