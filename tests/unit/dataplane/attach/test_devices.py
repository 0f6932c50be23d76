# SPDX-License-Identifier: Apache-2.0
import dataclasses
from types import SimpleNamespace

import pytest

from ebpflb.config.settings import Settings
from ebpflb.dataplane.attach import devices
from ebpflb.dataplane.attach.devices import (
    NetworkState,
    Patterns,
    best_source,
    classify,
    listen_addresses,
    primary_addresses,
)
from ebpflb.dataplane.kernel.rtnetlink import AddressFlag, Interface, InterfaceAddress
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, Family, format_address, parse_address

HOST, WORKLOAD = DeviceKind.LB_DEVICE_HOST, DeviceKind.LB_DEVICE_WORKLOAD
IPV4, IPV6 = Family.IPV4, Family.IPV6
NONE = 65534


def kind_of(interface: Interface, *others: Interface, patterns: Patterns | None = None):
    return classify([interface, *others], patterns or Patterns()).get(interface.ifindex)


def named(name: str, **facts) -> Interface:
    return Interface(2, name, **facts)


@pytest.mark.parametrize(
    "name",
    [
        *("eth0", "eth1.100", "ens3", "enp0s31f6", "eno1", "enx001122334455", "em1", "p1p1"),
        *("wlan0", "wlp2s0", "wwan0", "bond0", "bond0.7", "team0", "vlan100"),
        *(
            "vxlan.calico",
            "vxlan-v6.calico",
            "flannel.1",
            "flannel-wg",
            "geneve0",
            "genev_sys_6081",
        ),
        *("tunl0", "tun-1a2b", "ipip0", "ip6tnl1", "gre1", "sit1"),
        *("wg0", "wg-v6.cali", "wireguard.cali", "tailscale0"),
    ],
)
def test_cards_and_tunnels_are_host_devices(name):
    assert kind_of(named(name)) is HOST


@pytest.mark.parametrize(
    "name",
    ["veth1a2b3c", "vethwepl123", "cali12ab", "lxc1234", "eni0a1b2c", "azv12345", "gke1234"],
)
def test_the_devices_of_pods_are_workload_devices(name):
    assert kind_of(named(name)) is WORKLOAD


@pytest.mark.parametrize(
    "name",
    ["cni0", "docker0", "virbr0", "lxcbr0", "lxdbr0", "kube-bridge", "br-1a2b", "cbr0", "weave"],
)
def test_bridges_of_pods_are_left_alone(name):
    bridge = Interface(2, name, kind="bridge")
    port = Interface(3, "veth1", upper=2, upper_kind="bridge")
    assert classify([bridge, port], Patterns()) == {3: WORKLOAD}


@pytest.mark.parametrize("name", ["dummy0", "kube-ipvs0", "nodelocaldns", "ifb0", "vnet3", "tap0"])
def test_other_devices_are_left_alone(name):
    assert kind_of(named(name)) is None


def test_loopback_is_left_alone_whatever_it_is_called():
    assert kind_of(named("eth0", loopback=True)) is None


@pytest.mark.parametrize("upper_kind", ["bridge", "bond", "team", "openvswitch", ""])
def test_the_ports_of_another_device_are_no_host_devices(upper_kind):
    assert kind_of(named("eth0", upper=9, upper_kind=upper_kind)) is None


def test_the_ports_of_a_vrf_stay_host_devices():
    assert kind_of(named("eth0", upper=9, upper_kind="vrf")) is HOST


def test_a_bridge_takes_the_place_of_the_card_among_its_ports():
    bridge = Interface(2, "br0", kind="bridge")
    card = Interface(3, "eth0", upper=2, upper_kind="bridge")
    pod = Interface(4, "veth1", upper=2, upper_kind="bridge")
    assert classify([bridge, card, pod], Patterns()) == {2: HOST, 4: WORKLOAD}


def test_a_bridge_that_the_patterns_name_is_a_host_device():
    patterns = Patterns(host=("br*",))
    assert kind_of(named("br0", kind="bridge"), patterns=patterns) is HOST


def test_a_name_that_is_both_is_a_workload():
    assert kind_of(named("x1"), patterns=Patterns(("x*",), ("x*",))) is WORKLOAD


@pytest.mark.parametrize(
    ("name", "header", "expected"),
    [
        pytest.param("tun0", NONE, HOST, id="a tunnel whose packets begin with IP"),
        pytest.param("tunl0", 768, HOST, id="IPIP"),
        pytest.param("eth0", 32, None, id="InfiniBand"),
        pytest.param("wlan0", 803, None, id="radio monitor"),
        pytest.param("veth1", NONE, None, id="a pod without an Ethernet header"),
    ],
)
def test_the_header_must_be_known(name, header, expected):
    assert kind_of(named(name, header=header)) is expected


def address(text: str, length: int, scope: int = 0, flags: int = 0) -> InterfaceAddress:
    family = IPV6 if ":" in text else IPV4
    return InterfaceAddress(2, family, parse_address(text), length, scope, AddressFlag(flags))


def chosen(family: Family, *addresses: InterfaceAddress) -> str | None:
    best = best_source(addresses, family)
    return format_address(best) if best else None


LINK_SCOPE = 253
SECONDARY, TENTATIVE, OPTIMISTIC, DEPRECATED, DADFAILED = (
    AddressFlag.SECONDARY,
    AddressFlag.TENTATIVE,
    AddressFlag.OPTIMISTIC,
    AddressFlag.DEPRECATED,
    AddressFlag.DADFAILED,
)


@pytest.mark.parametrize(
    ("expected", "addresses"),
    [
        pytest.param(None, [], id="none"),
        pytest.param("10.0.0.1", [("10.0.0.1", 24), ("10.0.0.2", 24)], id="the first"),
        pytest.param("10.0.0.2", [("10.0.0.9", 32), ("10.0.0.2", 24)], id="no lone VIP"),
        pytest.param("10.0.0.9", [("10.0.0.9", 32)], id="a lone one if there is no other"),
        pytest.param("10.0.0.2", [("10.0.0.1", 24, 0, SECONDARY), ("10.0.0.2", 24)], id="primary"),
        pytest.param(None, [("169.254.0.1", 16, LINK_SCOPE)], id="not of link scope"),
    ],
)
def test_the_best_source_in_ipv4(expected, addresses):
    assert chosen(IPV4, *(address(*facts) for facts in addresses)) == expected


@pytest.mark.parametrize(
    ("expected", "addresses"),
    [
        pytest.param(
            "fd00::1", [("fe80::1", 64, LINK_SCOPE), ("fd00::1", 64)], id="not link-local"
        ),
        pytest.param(
            "fd00::2", [("fd00::1", 64, 0, TENTATIVE), ("fd00::2", 64)], id="no tentative"
        ),
        pytest.param(
            "fd00::1",
            [("fd00::1", 64, 0, TENTATIVE | OPTIMISTIC), ("fd00::2", 64)],
            id="an optimistic one",
        ),
        pytest.param(
            "fd00::2",
            [("fd00::1", 64, 0, DEPRECATED), ("fd00::2", 64, 0, SECONDARY)],
            id="rather temporary than deprecated",
        ),
        pytest.param(
            "fd00::2", [("fd00::1", 64, 0, SECONDARY), ("fd00::2", 64)], id="no temporary"
        ),
        pytest.param(None, [("fd00::1", 64, 0, DADFAILED)], id="none that somebody else has"),
        pytest.param(None, [("10.0.0.1", 24)], id="none of the other family"),
    ],
)
def test_the_best_source_in_ipv6(expected, addresses):
    assert chosen(IPV6, *(address(*facts) for facts in addresses)) == expected


def of(ifindex: int, text: str) -> InterfaceAddress:
    return address(text, 24)._replace(ifindex=ifindex)


def test_the_primary_address_is_the_default_routes():
    routed: dict[Family, Address | None] = {IPV4: parse_address("10.0.0.7"), IPV6: None}
    found = primary_addresses(routed, [of(2, "10.0.0.1")], {2: HOST})
    assert found == {IPV4: parse_address("10.0.0.7")}


def test_without_a_default_route_it_is_that_of_the_first_host_device():
    addresses = [of(1, "10.0.0.1"), of(4, "10.0.0.4"), of(3, "10.0.0.3"), of(2, "10.0.0.2")]
    found = primary_addresses({}, addresses, {4: HOST, 3: HOST, 2: WORKLOAD})
    assert found == {IPV4: parse_address("10.0.0.3")}


def test_the_agents_settings_will_do():
    names = {field.name for field in dataclasses.fields(Settings)}
    assert {"host_devices", "workload_devices", "nodeport_addresses", "bind_address"} <= names


def settings(*wanted):
    return SimpleNamespace(nodeport_addresses=wanted)


def test_the_word_primary_means_the_primary_address_of_each_family(monkeypatch):
    network = NetworkState({}, {}, {Family.IPV4: parse_address("192.0.2.1")})
    monkeypatch.setattr(devices, "snapshot", lambda _: network)
    assert listen_addresses(settings("primary")) == {Family.IPV4: ["192.0.2.1"]}


def test_addresses_are_those_of_this_machine():
    assert listen_addresses(settings("127.0.0.1/32"))[Family.IPV4] == ["127.0.0.1"]


def test_a_netlink_that_fails_is_one_line(monkeypatch):
    def fail():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(devices, "Rtnetlink", fail)
    with pytest.raises(ProbeError, match="Too many open files"):
        listen_addresses(settings("10.0.0.0/8"))
