# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.layout.records import pack_name
from ebpflb.model.address import Protocol
from ebpflb.model.changes import Changes
from ebpflb.model.objects.kinds import key_of
from ebpflb.observe.flows.flow_log import PortNames
from tests.builders import NODE, address, endpoint, endpoint_slice, port_name, service

POD = address("10.1.0.1")


@pytest.fixture
def changes():
    known = Changes(NODE)
    known.set(service())
    known.set(endpoint_slice("web-1", endpoint("10.1.0.1", pod="default/a")))
    return known


@pytest.fixture
def in_kernel():
    """What lb_names holds."""
    return {7: pack_name(port_name())}


@pytest.fixture
def ports(changes, in_kernel):
    return PortNames(changes, in_kernel.get)


def test_a_port_is_known_with_its_service_and_endpoints(ports):
    found = ports.look_up(7, Protocol.TCP)
    assert (found.name, found.service) == (port_name(), service())
    assert found.endpoints[POD].pod == "default/a"
    assert ports.look_up(8, Protocol.TCP) is None


def test_what_is_gone_stays_known(ports, changes, in_kernel):
    ports.look_up(7, Protocol.TCP)
    piece = endpoint_slice("web-1", endpoint("10.1.0.2", pod="default/b"))
    changes.set(piece)
    assert ports.look_up(7, Protocol.TCP).endpoints.keys() == {POD, address("10.1.0.2")}
    changes.remove(key_of(piece))
    changes.remove(key_of(service()))
    del in_kernel[7]
    found = ports.look_up(7, Protocol.TCP)
    assert (found.name, found.service) == (port_name(), service())
    assert found.endpoints[POD].pod == "default/a"


def test_an_address_belongs_to_its_next_pod_at_once(ports, changes):
    ports.look_up(7, Protocol.TCP)
    leaving = endpoint("10.1.0.1", pod="default/a", ready=False, terminating=True)
    coming = endpoint("10.1.0.1", pod="default/b")
    for endpoints in ((leaving, coming), (coming, leaving)):
        changes.set(endpoint_slice("web-1", *endpoints))
        assert ports.look_up(7, Protocol.TCP).endpoints[POD].pod == "default/b"


def test_an_id_that_was_given_again_is_the_new_port(ports, in_kernel):
    ports.look_up(7, Protocol.TCP)
    in_kernel[7] = pack_name(port_name(service="shop"))
    found = ports.look_up(7, Protocol.TCP)
    assert (found.name.service, found.service, found.endpoints) == ("shop", None, {})


def test_what_is_gone_does_not_gather_for_ever(ports, changes):
    for number in range(3000):
        ip = f"10.2.{number >> 8}.{number & 255}"
        changes.set(endpoint_slice("web-1", endpoint(ip, pod=f"default/{number}")))
        found = ports.look_up(7, Protocol.TCP)
    assert len(found.endpoints) < 1100


def test_services_that_are_gone_do_not_gather_for_ever(ports, changes, in_kernel):
    ports.look_up(7, Protocol.TCP)
    changes.set(endpoint_slice("web-1", endpoint("10.1.0.2", pod="default/b")))
    for number in range(8, 4000):
        in_kernel[number] = pack_name(port_name(service=f"gone-{number}"))
        ports.look_up(number, Protocol.TCP)
        del in_kernel[number]
    assert len(ports._known) < 2100
    assert ports.look_up(3000, Protocol.TCP).name.service == "gone-3000"
    assert ports.look_up(7, Protocol.TCP).endpoints[POD].pod == "default/a"


def test_the_endpoints_of_a_backup_are_known_too(ports, changes):
    changes.set(service("web", backup="static"))
    changes.set(service("static"))
    changes.set(endpoint_slice("s", endpoint("10.2.0.1", pod="default/s"), service="static"))
    assert ports.look_up(7, Protocol.TCP).endpoints[address("10.2.0.1")].pod == "default/s"
