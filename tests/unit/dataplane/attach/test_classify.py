# SPDX-License-Identifier: Apache-2.0
"""Devices as each network plugin documents them. Names matter only where structure is ambiguous."""

from typing import Any

import pytest

from ebpflb.dataplane.attach.classify import HOST, WORKLOAD, Patterns, Routing, classify
from ebpflb.dataplane.kernel.rtnetlink import Interface, InterfaceAddress
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.model.address import Family, parse_address

LEFT_OUT = None
NONE, IPIP, SIT, INFINIBAND = 65534, 768, 776, 32


def nodes(*devices) -> tuple[list[Interface], Routing]:
    """(name, kind[, facts]); facts: upper by name, netnsid, header, addresses, default, loopback.

    The ifindex of a device is its place, from 1.
    """
    rows = [(*device, {})[:3] for device in devices]
    numbers = {name: number for number, (name, _, _) in enumerate(rows, start=1)}
    kinds = {name: kind for name, kind, _ in rows}
    interfaces, addresses, default = [], [], []
    for name, kind, facts in rows:
        rest = dict(facts)
        upper = rest.pop("upper", "")
        for text in rest.pop("addresses", "").split():
            addresses.append(_address(numbers[name], text))
        if rest.pop("default", False):
            default.append(numbers[name])
        above = {"upper": numbers[upper], "upper_kind": kinds[upper]} if upper else {}
        interfaces.append(Interface(numbers[name], name, kind=kind, **above, **rest))
    return interfaces, Routing(addresses, default)


def _address(ifindex: int, text: str) -> InterfaceAddress:
    address, length = text.split("/")
    family = Family.IPV6 if ":" in address else Family.IPV4
    scope = 253 if address.startswith("fe80") else 0
    return InterfaceAddress(ifindex, family, parse_address(address), int(length), scope)


def judged(devices, patterns=None):
    interfaces, routing = nodes(*devices)
    found = classify(interfaces, patterns or Patterns(), routing)
    assert all(each.why for each in found.values())
    return {each.name: found[each.ifindex].kind for each in interfaces}


POD = {"netnsid": 1}
CARD = ("eth0", "", {"default": True, "addresses": "192.0.2.2/24 2001:db8::2/64"})
LO = ("lo", "", {"loopback": True, "addresses": "127.0.0.1/8 203.0.113.9/32"})


def port_of(upper: str, **facts):
    return {"upper": upper, **facts}


# What is not named here is a host device.
TABLE: dict[str, tuple[list[tuple[Any, ...]], dict[str, DeviceKind | None]]] = {
    "flannel": (
        [
            *(LO, CARD, ("flannel.1", "vxlan", {"addresses": "10.244.1.0/32"})),
            ("cni0", "bridge", {"addresses": "10.244.1.1/24"}),
            ("veth1a2b3c4d", "veth", port_of("cni0", netnsid=1)),
        ],
        {"veth1a2b3c4d": WORKLOAD, "cni0": LEFT_OUT, "lo": LEFT_OUT},
    ),
    "Calico": (
        [
            *(CARD, ("tunl0", "ipip", {"header": IPIP, "addresses": "10.1.2.0/32"})),
            *(("vxlan.calico", "vxlan"), ("wireguard.cali", "wireguard", {"header": NONE})),
            (
                "cali12ab34cd56e",
                "veth",
                {"netnsid": 3, "addresses": "fe80::ecee:eeff:feee:eeee/64"},
            ),
            ("cali00000000001", "veth", {"netnsid": 4, "addresses": "169.254.1.1/32"}),
        ],
        {"cali12ab34cd56e": WORKLOAD, "cali00000000001": WORKLOAD},
    ),
    "Cilium": (
        [
            *(CARD, ("cilium_vxlan", "vxlan"), ("cilium_net", "veth", {"addresses": "fe80::1/64"})),
            ("cilium_host", "veth", {"addresses": "10.0.1.66/32 fe80::2/64"}),
            *(("lxc0a1b2c3d4e5f", "veth", POD), ("lxc_health", "veth", POD)),
            ("lxcnetkit", "netkit", POD),
        ],
        {
            "cilium_net": LEFT_OUT,
            **dict.fromkeys(("lxc0a1b2c3d4e5f", "lxc_health", "lxcnetkit"), WORKLOAD),
        },
    ),
    "AWS VPC CNI": (
        [
            *(CARD, ("eth1", "", {"addresses": "192.0.2.77/24"}), ("ens6", "")),
            *(("eni0a1b2c3d4e5", "veth", POD), ("vlan0a1b2c3d4", "veth", POD)),
            ("vlan.eth.1", "vlan"),
        ],
        {"eni0a1b2c3d4e5": WORKLOAD, "vlan0a1b2c3d4": WORKLOAD},
    ),
    "Azure": ([CARD, ("azv1a2b3c4d5e6", "veth", POD)], {"azv1a2b3c4d5e6": WORKLOAD}),
    "Azure, bridge": (
        [
            ("azure0", "bridge", {"addresses": "10.240.0.4/16", "default": True}),
            ("eth0", "", port_of("azure0")),
            ("azv1a2b3c4d5e6", "veth", port_of("azure0", netnsid=1)),
        ],
        {"eth0": LEFT_OUT, "azv1a2b3c4d5e6": WORKLOAD},
    ),
    "GKE": (
        [
            ("eth0", "", {"default": True, "addresses": "10.128.0.2/32"}),
            ("gke52a1b2c3d4e", "veth", {"netnsid": 0, "addresses": "10.4.0.1/32"}),
        ],
        {"gke52a1b2c3d4e": WORKLOAD},
    ),
    "OVN-Kubernetes": (
        [
            *(("ovs-system", "openvswitch"), ("br-int", "openvswitch")),
            ("enp1s0", "", port_of("ovs-system")),
            ("br-ex", "openvswitch", {"addresses": "192.0.2.2/24", "default": True}),
            ("genev_sys_6081", "geneve", port_of("ovs-system")),
            ("ovn-k8s-mp0", "openvswitch", {"addresses": "10.244.0.2/24"}),
            ("0a1b2c3d4e5f6_0", "veth", port_of("ovs-system", netnsid=2)),
        ],
        {
            **dict.fromkeys(("ovs-system", "br-int", "enp1s0", "genev_sys_6081"), LEFT_OUT),
            "0a1b2c3d4e5f6_0": WORKLOAD,
        },
    ),
    "Antrea": (
        [
            *(CARD, ("ovs-system", "openvswitch"), ("antrea-tun0", "vxlan")),
            ("antrea-gw0", "openvswitch", {"addresses": "10.10.0.1/24"}),
            ("coredns--0a1b2c", "veth", port_of("ovs-system", netnsid=0)),
        ],
        {"ovs-system": LEFT_OUT, "coredns--0a1b2c": WORKLOAD},
    ),
    "Kube-OVN": (
        [
            *(CARD, ("ovs-system", "openvswitch")),
            ("ovn0", "openvswitch", {"addresses": "100.64.0.2/16"}),
            ("1a2b3c4d5e6f_h", "veth", port_of("ovs-system", netnsid=0)),
        ],
        {"ovs-system": LEFT_OUT, "1a2b3c4d5e6f_h": WORKLOAD},
    ),
    "Weave": (
        [
            *(
                CARD,
                ("weave", "bridge", {"addresses": "10.32.0.1/12"}),
                ("datapath", "openvswitch"),
            ),
            ("vxlan-6784", "vxlan", port_of("datapath")),
            ("vethwepl1234567", "veth", port_of("weave", netnsid=0)),
        ],
        {
            **dict.fromkeys(("weave", "datapath", "vxlan-6784"), LEFT_OUT),
            "vethwepl1234567": WORKLOAD,
        },
    ),
    "kube-router": (
        [
            *(CARD, ("kube-bridge", "bridge", {"addresses": "10.2.0.1/24"})),
            *(("tun-1a2b3c4d5e6", "ipip", {"header": IPIP}), ("kube-dummy-if", "dummy")),
            ("veth1a2b3c4d", "veth", port_of("kube-bridge", netnsid=0)),
        ],
        {"kube-bridge": LEFT_OUT, "kube-dummy-if": LEFT_OUT, "veth1a2b3c4d": WORKLOAD},
    ),
    "ptp, as of kindnet, in a container": (
        [
            ("eth0", "veth", {"netnsid": 0, "default": True, "addresses": "172.18.0.2/16"}),
            ("veth1a2b3c4d", "veth", {"netnsid": 1, "addresses": "10.244.0.1/32 fd00::1/128"}),
            ("pair1", "veth", {"netnsid": 2, "addresses": "10.244.0.1/32"}),
        ],
        {"veth1a2b3c4d": WORKLOAD, "pair1": WORKLOAD},
    ),
    "a container with uplinks of any name": (
        [
            ("up0", "veth", {"netnsid": 0, "default": True, "addresses": "10.0.0.5/32"}),
            ("up1", "veth", {"netnsid": 0, "addresses": "10.1.0.5/24"}),
            ("up2", "macvlan", {"netnsid": 0, "addresses": "10.2.0.5/24"}),
        ],
        {},
    ),
    "uplinks of every kind": (
        [
            ("br0", "bridge", {"default": True, "addresses": "192.0.2.2/24"}),
            ("bond0", "bond", port_of("br0")),
            *(("ens1f0", "", port_of("bond0")), ("br0.100", "vlan", {"addresses": "10.9.0.1/24"})),
            *(("bond1", "bond"), ("bond1.7", "vlan"), ("team0", "team"), ("ens1f0v0", "")),
            *(("wg0", "wireguard", {"header": NONE}), ("tailscale0", "tun", {"header": NONE})),
            *(("gre1", "gre"), ("xfrm1", "xfrm", {"header": NONE})),
            *(("sit1", "sit", {"header": SIT}), ("sriov", "", {"addresses": "192.0.2.9/24"})),
            ("ipvl0", "ipvlan", {"addresses": "192.0.2.10/24"}),
        ],
        {"bond0": LEFT_OUT, "ens1f0": LEFT_OUT},
    ),
    "containers and machines beside Kubernetes": (
        [
            *(CARD, ("docker0", "bridge", {"addresses": "172.17.0.1/16"}), ("lxdbr0", "bridge")),
            *(("vethf00", "veth", port_of("docker0", netnsid=9)), ("podman0", "bridge")),
            *(("virbr0", "bridge"), ("vnet3", "tun", port_of("virbr0")), ("tap0", "tun")),
            *(("ibp1", "", {"header": INFINIBAND, "addresses": "10.8.0.1/24"}), ("ifb0", "ifb")),
            *(("kube-ipvs0", "dummy", {"addresses": "10.96.0.1/32"}), ("macvtap0", "macvtap")),
            ("nodelocaldns", "dummy", {"addresses": "169.254.20.10/32 10.96.0.10/32"}),
            *(("dummy0", "dummy", {"addresses": "203.0.113.1/24"}), ("mac0", "macvlan")),
        ],
        {
            "vethf00": WORKLOAD,
            **dict.fromkeys(("docker0", "lxdbr0", "podman0", "virbr0", "vnet3", "tap0"), LEFT_OUT),
            **dict.fromkeys(("ibp1", "ifb0", "kube-ipvs0", "macvtap0", "nodelocaldns"), LEFT_OUT),
            **dict.fromkeys(("dummy0", "mac0"), LEFT_OUT),
        },
    ),
}


@pytest.mark.parametrize("network", TABLE)
def test_devices_are_what_the_network_plugin_makes_them_for(network):
    devices, others = TABLE[network]
    expected = {str(name): others.get(name, HOST) for name, *_ in devices}
    assert judged(devices) == expected


# Where structure cannot tell


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        pytest.param(("eth1", "veth", POD), HOST, id="the uplink of a container, not up yet"),
        pytest.param(("veth1", "veth"), WORKLOAD, id="both ends here, named as a pod's"),
        pytest.param(("cali1", "tun"), WORKLOAD, id="a tap named as a pod's"),
        pytest.param(("eni1", ""), WORKLOAD, id="a card named as a pod's"),
        pytest.param(("eni1", "", {"addresses": "192.0.2.2/24"}), HOST, id="with an address"),
        pytest.param(("tun1", "tun"), HOST, id="a tap named as a tunnel"),
        pytest.param(("eth9", "dummy"), HOST, id="a dummy named as a card"),
        pytest.param(("bridge9", "veth"), LEFT_OUT, id="both ends here, of any name"),
        pytest.param(
            ("veth1", "veth", {**POD, "addresses": "10.0.0.1/24"}), WORKLOAD, id="with a subnet"
        ),
        pytest.param(
            ("veth1", "veth", {**POD, "addresses": "10.0.0.1/24", "default": True}),
            HOST,
            id="named as a pod's, but the default route",
        ),
    ],
)
def test_else_the_name_decides(device, expected):
    assert judged([device]) == {device[0]: expected}


def test_a_vrf_leaves_its_ports_what_they_are():
    found = judged([("vrf1", "vrf"), ("eth1", "", port_of("vrf1"))])
    assert found == {"vrf1": LEFT_OUT, "eth1": HOST}


def test_only_a_pods_device_with_ethernet_headers_is_served():
    assert judged([("lxc1", "netkit", {**POD, "header": NONE})]) == {"lxc1": LEFT_OUT}


# What the settings say

DEVICES = [
    CARD,
    ("eth1", ""),
    ("br-storage", "bridge", {"addresses": "10.7.0.1/24"}),
    ("veth1", "veth", POD),
    ("tap0", "tun"),
]


@pytest.mark.parametrize(
    ("host", "workload", "expected"),
    [
        pytest.param([], [], {"eth0": HOST, "eth1": HOST, "veth1": WORKLOAD}, id="nothing"),
        pytest.param(["eth0"], [], {"eth0": HOST, "veth1": WORKLOAD}, id="replaced"),
        pytest.param(
            ["+br-*"],
            ["+tap*"],
            {
                "eth0": HOST,
                "eth1": HOST,
                "br-storage": HOST,
                "veth1": WORKLOAD,
                "tap0": WORKLOAD,
            },
            id="added",
        ),
        pytest.param(["eth*"], ["tap*"], {"eth0": HOST, "eth1": HOST, "tap0": WORKLOAD}, id="both"),
        pytest.param(["eth*"], ["eth1"], {"eth0": HOST, "eth1": WORKLOAD}, id="workload first"),
    ],
)
def test_patterns_replace_what_structure_says_or_are_added_to_it(host, workload, expected):
    found = judged(DEVICES, Patterns(tuple(host), tuple(workload)))
    assert {name: kind for name, kind in found.items() if kind} == expected


def test_a_bridge_is_a_host_device_for_the_card_that_the_settings_name():
    devices = [("br0", "bridge"), ("lan7", "veth", port_of("br0", netnsid=1))]
    assert judged(devices) == {"br0": LEFT_OUT, "lan7": WORKLOAD}
    assert judged(devices, Patterns(host=("lan*",)))["br0"] is HOST
