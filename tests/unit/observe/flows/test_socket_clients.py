# SPDX-License-Identifier: Apache-2.0
from sys import byteorder

import pytest

from ebpflb.dataplane.flows.records import brief
from ebpflb.dataplane.layout.structs import LbAddr
from ebpflb.model.pod import NamedPod
from ebpflb.observe.flows.pipeline import SocketClients
from tests.builders import address
from tests.unit.agent.flows import record, refused

COOKIE = 0x1234567890


def of_namespace(family, cookie=COOKIE):
    client = LbAddr.from_buffer_copy(family.to_bytes(8, "big") + cookie.to_bytes(8, byteorder))
    return refused(client=client, client_port=0)


def client(raw, *addresses, pods=()):
    """Of a record, where the namespace has these addresses, and the API knows these pods'."""
    own = {COOKIE: [address(each) for each in addresses]}
    names = {address(each): NamedPod("default/web") for each in pods}
    clients = SocketClients(
        lambda cookie: own.get(cookie, ()), lambda each: names.get(each, NamedPod())
    )
    return brief(clients.with_address(raw)).client


@pytest.mark.parametrize(("family", "wanted"), [(4, "10.1.0.9"), (6, "fd00::9")])
def test_it_is_the_pods_address_of_that_family(family, wanted):
    assert client(of_namespace(family), "10.1.0.9", "fd00::9") == address(wanted)


def test_of_a_pod_with_two_networks_it_is_the_one_that_the_api_knows():
    both = "10.1.0.9", "172.16.0.9"
    assert client(of_namespace(4), *both, pods=["172.16.0.9"]) == address("172.16.0.9")
    assert client(of_namespace(4), *both) == address("10.1.0.9")


@pytest.mark.parametrize("raw", [of_namespace(4), of_namespace(6, cookie=1)])
def test_a_namespace_that_is_gone_is_no_address(raw):
    assert client(raw, "fd00::9") == bytes(16)


def test_other_records_stay_as_they_are():
    raw = record()
    assert client(raw, "10.1.0.1") == address("10.1.0.9")
    clients = SocketClients(lambda _: (), lambda _: NamedPod())
    assert clients.with_address(raw) is raw
    assert clients.with_address(b"short") == b"short"
