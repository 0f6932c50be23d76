# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.attach.devices import Device, NetworkState
from ebpflb.dataplane.doctor.node import check_sysctls
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.model.address import Family, parse_address

HOST, POD = DeviceKind.LB_DEVICE_HOST, DeviceKind.LB_DEVICE_WORKLOAD
NODE = parse_address("192.0.2.1")
NETWORK = NetworkState(
    {n: Device(n, f"eth{n}", HOST if n < 2 else POD, True, True) for n in range(3)},
    {},
    dict.fromkeys(Family, NODE),
)
SNAT = [(1024, 29999), (61000, 65535)]
GOOD = {
    "ipv4/ip_local_port_range": "32768\t60999",
    "ipv4/ip_local_reserved_ports": "",
    "ipv4/conf/all/rp_filter": "2",
    "ipv4/conf/all/route_localnet": "0",
    "ipv6/conf/all/forwarding": "1",
    **{f"ipv4/conf/eth{n}/forwarding": "1" for n in range(3)},
    **{f"ipv4/conf/eth{n}/rp_filter": "0" for n in range(3)},
}
ALL_OFF = {f"ipv4/conf/eth{n}/forwarding": "0" for n in range(3)}
STRICT = {"ipv4/conf/all/rp_filter": "1"}
NODE_PORTS_TOO = {"ipv4/ip_local_port_range": "30500 60999"}


@pytest.fixture
def found(tmp_path):
    def look(changed, network=NETWORK, node_ports=(30000, 32767)):
        for name, value in {**GOOD, **changed}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        seen = check_sysctls(network, node_ports, SNAT, tmp_path)
        return [(str(each.severity), each.where) for each in seen]

    return look


def test_a_node_that_forwards_is_well(found):
    assert found({}) == [("ok", "")]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param(ALL_OFF, ("error", "net.ipv4.ip_forward"), id="IPv4"),
        pytest.param(
            {"ipv6/conf/all/forwarding": "0"}, ("error", "net.ipv6.conf.all.forwarding"), id="IPv6"
        ),
        pytest.param(
            {"ipv4/conf/eth1/forwarding": "0"},
            ("warning", "net.ipv4.conf.*.forwarding of eth1"),
            id="one device",
        ),
        pytest.param(STRICT, ("warning", "net.ipv4.conf.*.rp_filter of eth0, eth1"), id="strict"),
        pytest.param(NODE_PORTS_TOO, ("warning", "net.ipv4.ip_local_port_range"), id="NodePorts"),
    ],
)
def test_what_breaks_services_is_found(found, changed, expected):
    assert found(changed) == [expected]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"ipv4/conf/all/route_localnet": "1"}, "net.ipv4.conf.all.route_localnet"),
        ({"ipv4/ip_local_port_range": "32768 65535"}, "net.ipv4.ip_local_port_range"),
    ],
)
def test_what_may_be_meant_is_a_note(found, changed, expected):
    assert found(changed) == [("ok", ""), ("note", expected)]


def test_reserved_node_ports_are_not_taken(found):
    reserved = {**NODE_PORTS_TOO, "ipv4/ip_local_reserved_ports": "80,30000-32767"}
    assert found(reserved) == [("ok", "")]
    part = {**NODE_PORTS_TOO, "ipv4/ip_local_reserved_ports": "30000-31000,32000"}
    assert found(part) == [("warning", "net.ipv4.ip_local_port_range")]


def test_another_range_of_node_ports_is_another_overlap(found):
    assert found(NODE_PORTS_TOO, node_ports=(20000, 22767)) == [("ok", "")]
    (taken,) = found({}, node_ports=(40000, 42767))
    assert taken == ("warning", "net.ipv4.ip_local_port_range")


def test_with_one_way_out_strict_is_well(found):
    devices = {n: each for n, each in NETWORK.devices.items() if n != 1}
    assert found(STRICT, NetworkState(devices, {}, NETWORK.primary)) == [("ok", "")]


def test_a_family_that_the_node_has_not_is_not_looked_at(found):
    only = NetworkState(NETWORK.devices, {}, {Family.IPV4: NODE})
    assert found({"ipv6/conf/all/forwarding": "0"}, only) == [("ok", "")]
