# SPDX-License-Identifier: Apache-2.0
"""Rules as tools print them: those of Docker, CNIs and kube-proxy."""

import pytest

from ebpflb.dataplane.attach.devices import Device, NetworkState
from ebpflb.dataplane.doctor.forward_chain import Way, drops, nft_accepts, way_to_pods
from ebpflb.dataplane.kernel.rtnetlink import Interface
from ebpflb.dataplane.kube_proxy.chains import parse
from ebpflb.dataplane.layout.enums import DeviceKind

WAY = Way(["eth0"], ["veth1", "cni0", "cilium_host"])
DOCKER = [
    "-A FORWARD -j DOCKER",
    "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-A FORWARD -i docker0 ! -o docker0 -j ACCEPT",
    "-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -j ACCEPT",
]
KUBE_PROXY = [
    '-A FORWARD -m comment --comment "kubernetes forwarding rules" -j DOCKER',
    "-A DOCKER -m mark --mark 0x4000/0x4000 -j ACCEPT",
    "-A DOCKER -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
]

FIREWALL_PLUGIN = [
    "-A FORWARD -d 10.85.0.5/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-A FORWARD -s 10.85.0.5/32 -j ACCEPT",
]


def table(rules, policy="DROP"):
    head = ["*filter", f":FORWARD {policy} [0:0]", ":DOCKER - [0:0]"]
    (found,) = parse("\n".join([*head, *rules, "COMMIT"]))
    return found


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ([], True),
        (DOCKER, True),
        (KUBE_PROXY, True),
        ([*DOCKER, '-A FORWARD -d 10.244.0.0/16 -m comment --comment "flanneld" -j ACCEPT'], False),
        ([*DOCKER, "-A DOCKER -m mark --mark 0x10000/0x10000 -j ACCEPT"], False),
        (["-A FORWARD -o cni+ -j ACCEPT"], False),
        (["-A FORWARD ! -i docker0 -j ACCEPT"], False),
        (["-A FORWARD ! -o cni0 -j ACCEPT"], True),
        (["-A FORWARD -m conntrack --ctstate NEW -j ACCEPT"], False),
        (["-A DOCKER -j ACCEPT"], True),
        (FIREWALL_PLUGIN, True),
        (["-A FORWARD -o cilium_host -j ACCEPT"], False),
        (["-A FORWARD -j DOCKER", "-A DOCKER -j FORWARD"], True),
    ],
)
def test_what_no_rule_of_iptables_accepts_is_dropped(rules, found):
    assert drops(table(rules), WAY) is found
    assert not drops(table(rules, "ACCEPT"), WAY)


def test_where_no_pod_is_known_any_device_may_be_one():
    assert not drops(table(["-A FORWARD -o docker0 -j ACCEPT"]), Way(["eth0"], []))


def meta(key, right, operator="=="):
    return {"match": {"op": operator, "left": {"meta": {"key": key}}, "right": right}}


def state(*states):
    return {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": [*states]}}


ACCEPT = {"accept": None}
SOURCE = {
    "match": {
        "op": "==",
        "left": {"payload": {"protocol": "ip", "field": "saddr"}},
        "right": "10.85.0.5",
    }
}


@pytest.mark.parametrize(
    ("expressions", "accepts"),
    [
        ([], False),
        ([ACCEPT], True),
        ([{"counter": {}}, meta("oifname", "cni0"), ACCEPT], True),
        ([meta("oifname", "docker0"), ACCEPT], False),
        ([meta("oifname", "docker0", "!="), ACCEPT], True),
        ([meta("iifname", {"set": ["docker0", "eth0"]}), ACCEPT], True),
        ([meta("iifname", "@some"), ACCEPT], True),
        ([state("established", "related"), ACCEPT], False),
        ([state("new"), ACCEPT], True),
        ([SOURCE, ACCEPT], False),
        ([{"jump": {"target": "more"}}], True),
        ([{"jump": {"target": "none"}}], False),
        ([{"vmap": {"key": {"ct": {"key": "state"}}}}], True),
        ([{"drop": None}], False),
    ],
)
def test_what_no_rule_of_nft_accepts_is_dropped(expressions, accepts):
    rules = [{"chain": "more", "expr": [ACCEPT]}, {"chain": "forward", "expr": expressions}]
    assert nft_accepts(rules, "forward", WAY) is accepts


HOST, POD = DeviceKind.LB_DEVICE_HOST, DeviceKind.LB_DEVICE_WORKLOAD


def test_packets_for_pods_leave_by_neither_a_card_nor_the_bridge_of_others():
    interfaces = [
        Interface(1, "lo", loopback=True),
        Interface(2, "eth0"),
        Interface(3, "veth1", kind="veth", upper=4),
        Interface(4, "cni0", kind="bridge"),
        Interface(5, "docker0", kind="bridge"),
        Interface(6, "cilium_host", kind="veth"),
        Interface(7, "flannel.1", kind="vxlan"),
    ]
    kinds = {2: HOST, 3: POD, 6: HOST, 7: HOST}
    devices = {n: Device(n, f"dev{n}", kind, ethernet=True, up=True) for n, kind in kinds.items()}
    found = way_to_pods(NetworkState(devices, {}, {}), interfaces)
    assert found == Way(["eth0", "cilium_host", "flannel.1"], ["veth1", "cni0", "cilium_host"])
