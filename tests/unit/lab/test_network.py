# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.lab import network
from ebpflb.lab.layout import Cni, LabConfig, Layout, SeatKind, Stack


def lines(cni, family, name, maker=network.commands):
    layout = Layout(LabConfig("t", nodes=2, pods=1, cni=cni, family=family), 0)
    return maker(layout, next(seat for seat in layout.seats() if seat.name == name))


def test_ptp_gives_each_pod_a_route_and_a_veth_pair_of_its_own():
    assert lines(Cni.PTP, Stack.IPV4, "node1") == [
        "link set lo up",
        "addr add 10.100.0.11/24 dev eth0",
        "link set eth0 up",
        "route add default via 10.100.0.1",
        "route add 10.100.130.0/24 via 10.100.0.12",
        "link add name veth-1-1 mtu 1500 type veth peer name eth0 mtu 1500 netns t-pod-1-1",
        "addr add 10.100.129.1/32 dev veth-1-1",
        "link set veth-1-1 up",
        "route add 10.100.129.11/32 dev veth-1-1",
    ]
    assert lines(Cni.PTP, Stack.IPV4, "pod-1-1") == [
        "link set lo up",
        "addr add 10.100.129.11/32 dev eth0",
        "link set eth0 up",
        "route add 10.100.129.1/32 dev eth0",
        "route add default via 10.100.129.1 dev eth0",
    ]


def test_bridge_puts_the_pods_of_a_node_into_one_subnet():
    made = lines(Cni.BRIDGE, Stack.IPV4, "node2")
    assert "addr add 10.100.130.1/24 dev cni0" in made
    assert "link set veth-2-1 master cni0 up" in made
    assert "route add 10.100.129.0/24 via 10.100.0.11" in made
    pod = lines(Cni.BRIDGE, Stack.IPV4, "pod-2-1")
    assert "addr add 10.100.130.11/24 dev eth0" in pod
    assert pod[-1] == "route add default via 10.100.130.1 dev eth0"


def test_vxlan_routes_the_other_nodes_pods_into_a_tunnel_without_learning():
    made = lines(Cni.VXLAN, Stack.IPV4, "node1")
    assert (
        "link add name vxlan1 address 0e:eb:f1:b0:00:01 mtu 1450 type vxlan id 1 "
        "local 10.100.0.11 dev eth0 dstport 8472 nolearning"
    ) in made
    assert "addr add 10.100.129.0/32 dev vxlan1" in made
    assert "neigh add 10.100.130.0 lladdr 0e:eb:f1:b0:00:02 dev vxlan1 nud permanent" in made
    assert "route add 10.100.130.0/24 via 10.100.130.0 dev vxlan1 onlink" in made
    assert lines(Cni.VXLAN, Stack.IPV4, "node1", network.forwarding_entries) == [
        "fdb append 0e:eb:f1:b0:00:02 dev vxlan1 dst 10.100.0.12 self"
    ]


@pytest.mark.parametrize(
    ("family", "mtu"), [(Stack.IPV4, 1450), (Stack.DUAL, 1450), ("ipv6", 1430)]
)
def test_pods_leave_room_for_the_tunnels_headers(family, mtu):
    made = lines(Cni.VXLAN, Stack(family), "node1")
    assert (
        f"link add name veth-1-1 mtu {mtu} type veth peer name eth0 mtu {mtu} netns t-pod-1-1"
        in made
    )


@pytest.mark.parametrize("cni", [Cni.PTP, Cni.BRIDGE])
def test_only_vxlan_has_forwarding_entries(cni):
    assert not lines(cni, Stack.DUAL, "node1", network.forwarding_entries)


@pytest.mark.parametrize("cni", list(Cni))
@pytest.mark.parametrize("name", ["underlay", "node1", "pod-1-1", "client"])
def test_a_family_that_is_not_wanted_gets_no_address_and_no_route(cni, name):
    for family, foreign in ((Stack.IPV4, "fdeb:"), (Stack.IPV6, "10.100.")):
        assert not [line for line in lines(cni, family, name) if foreign in line]


@pytest.mark.parametrize("cni", list(Cni))
def test_ipv6_addresses_skip_duplicate_address_detection(cni):
    for name in ("underlay", "node1", "pod-1-1", "client"):
        added = [line for line in lines(cni, Stack.IPV6, name) if line.startswith("addr add")]
        assert added
        assert all(line.endswith(" nodad") for line in added)


def test_only_nodes_forward():
    layout = Layout(LabConfig(), 0)
    for seat in layout.seats():
        made = network.sysctls(seat, layout.config)
        assert ("ipv4/ip_forward" in made) == (seat.kind is SeatKind.NODE)
        assert ("ipv6/conf/all/forwarding" in made) == (seat.kind is SeatKind.NODE)


def test_reverse_path_filtering_is_loose_unless_chosen():
    seat = next(Layout(LabConfig(), 0).nodes())
    assert network.sysctls(seat, LabConfig())["ipv4/conf/default/rp_filter"] == "2"
    assert network.sysctls(seat, LabConfig(rp_filter=1))["ipv4/conf/all/rp_filter"] == "1"


def test_the_client_sends_load_balancer_addresses_to_the_first_node_and_knows_no_pods():
    made = lines(Cni.PTP, Stack.DUAL, "client")
    assert "route add 10.100.80.0/20 via 10.100.0.11" in made
    assert "route add fdeb:f1b:0:50::/64 via fdeb:f1b::11" in made
    assert not [line for line in made if "10.100.129" in line or ":101:" in line]


def test_tunnels_are_host_devices():
    assert network.host_devices(LabConfig(cni=Cni.VXLAN)) == ("eth0", "vxlan1")
    assert network.host_devices(LabConfig(cni=Cni.BRIDGE)) == ("eth0",)


def test_device_names_of_the_largest_lab_fit():
    layout = Layout(LabConfig(nodes=100, pods=200), 0)
    last = list(layout.nodes())[-1]
    names = [line.split()[3] for line in network.commands(layout, last) if "link add" in line]
    assert names[-1] == "veth-100-200"
    assert all(len(name) <= 15 for name in names)
