# SPDX-License-Identifier: Apache-2.0
import dataclasses
from types import SimpleNamespace

import pytest

from ebpflb.config.settings import Settings
from ebpflb.dataplane.attach import devices
from ebpflb.dataplane.attach.devices import (
    NetworkState,
    listen_addresses,
)
from ebpflb.errors import ProbeError
from ebpflb.model.address import Family, parse_address


def test_the_agents_settings_will_do():
    names = {field.name for field in dataclasses.fields(Settings)}
    assert {"host_devices", "workload_devices", "nodeport_addresses", "bind_address"} <= names


def settings(*wanted):
    return SimpleNamespace(nodeport_addresses=wanted)


def test_the_word_primary_means_the_primary_address_of_each_family(monkeypatch):
    network = NetworkState({}, {}, {Family.IPV4: parse_address("127.0.0.1")})
    monkeypatch.setattr(devices, "snapshot", lambda _: network)
    expected = {Family.IPV4: ["127.0.0.1"], Family.IPV6: []}
    assert listen_addresses(settings("primary")) == expected


def test_addresses_are_those_of_this_machine():
    assert listen_addresses(settings("127.0.0.1/32"))[Family.IPV4] == ["127.0.0.1"]


def test_a_netlink_that_fails_is_one_line(monkeypatch):
    def fail():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(devices, "Rtnetlink", fail)
    with pytest.raises(ProbeError, match="Too many open files"):
        listen_addresses(settings("10.0.0.0/8"))
