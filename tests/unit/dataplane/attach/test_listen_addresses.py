# SPDX-License-Identifier: Apache-2.0
"""Where the health checks of Services are answered."""

from types import SimpleNamespace

import pytest

from ebpflb.dataplane.attach import listen_addresses as module
from ebpflb.dataplane.attach.devices import NetworkState
from ebpflb.dataplane.attach.listen_addresses import chosen, listen_addresses
from ebpflb.dataplane.kernel.interfaces import InterfaceAddress
from ebpflb.errors import ProbeError
from ebpflb.model.address import Family, family_of, parse_address

TEXTS = ("127.0.0.1", "192.0.2.1", "10.0.0.1", "2001:db8::1", "fd00::1")
ALL_4, ALL_6 = ["0.0.0.0"], ["::"]


def found(*texts, scope=0):
    addresses = [parse_address(text) for text in texts]
    return [InterfaceAddress(1, family_of(each), each, 8, scope) for each in addresses]


@pytest.mark.parametrize(
    ("cidrs", "expected_4", "expected_6"),
    [
        pytest.param([], ALL_4, ALL_6, id="all"),
        pytest.param(["0.0.0.0/0", "::/0"], ALL_4, ALL_6, id="zero"),
        pytest.param(["10.0.0.0/8", "0.0.0.0/0"], ALL_4, ALL_6, id="zero and more"),
        pytest.param(["10.0.0.0/8"], ["10.0.0.1"], ALL_6, id="a family without CIDR"),
        pytest.param(["fd00::/8"], ALL_4, ["fd00::1"], id="the other family"),
        pytest.param(["127.0.0.0/8"], ["127.0.0.1"], ALL_6, id="loopback"),
        pytest.param(["198.51.100.0/24"], [], ALL_6, id="none of them"),
        pytest.param(
            ["10.0.0.0/8", "192.0.2.1/32"], ["192.0.2.1", "10.0.0.1"], ALL_6, id="several"
        ),
    ],
)
def test_cidrs_say_where(cidrs, expected_4, expected_6):
    assert chosen(cidrs, found(*TEXTS)) == {Family.IPV4: expected_4, Family.IPV6: expected_6}


def test_link_local_addresses_are_left_out():
    addresses = [*found("fe80::1", scope=253), *found("fd00::1")]
    assert chosen(["fe80::/10", "fd00::/8"], addresses)[Family.IPV6] == ["fd00::1"]


def settings(*wanted):
    return SimpleNamespace(nodeport_addresses=wanted)


def test_the_word_primary_means_the_primary_address_of_each_family(monkeypatch):
    network = NetworkState({}, {}, {Family.IPV4: parse_address("192.0.2.1")})
    monkeypatch.setattr(module, "snapshot", lambda _: network)
    assert listen_addresses(settings("primary")) == {Family.IPV4: ["192.0.2.1"]}


def test_addresses_are_those_of_this_machine():
    assert listen_addresses(settings("127.0.0.1/32"))[Family.IPV4] == ["127.0.0.1"]


def test_a_netlink_that_fails_is_one_line(monkeypatch):
    def fail():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module, "Rtnetlink", fail)
    with pytest.raises(ProbeError, match="Too many open files"):
        listen_addresses(settings("10.0.0.0/8"))
