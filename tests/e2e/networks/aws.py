# SPDX-License-Identifier: Apache-2.0
"""A node as the Amazon VPC CNI configures it, and the relevant behaviour of the VPC.

After cmd/routed-eni-cni-plugin/driver/driver.go and pkg/networkutils of aws/amazon-vpc-cni-k8s:
pods on the first network interface (ENI), on a second one with its own route table, and with a
security group, whose traffic uses a VLAN of a third one (POD_SECURITY_GROUP_ENFORCING_MODE is
strict). A veth stands for the VLAN device.

The VPC routes each address to its ENI and drops packets whose source is not the ENI's.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ebpflb.lab import Lab
from tests.e2e.harness.cluster import address_of
from tests.e2e.networks.plugins import LONGEST, UPLINK, VERSIONS, Style, nodad, rewire, run

NODE = "node1"
FIRST, SECOND, GROUPED = "pod-1-1", "pod-1-2", "pod-1-3"
# The second ENI, the VLAN of the third one, and their route tables.
ENI, VLAN = "eth1", "vlan.eth.1"
_TABLES = {ENI: 2, VLAN: 101}
_PODS = {FIRST: "eni0a1b2c3d4e5", SECOND: "eni1a2b3c4d5e6", GROUPED: "vlan2a3b4c5d6e"}
_MARK = "0x80/0x80"
_GATEWAYS = {4: "169.254.1.1", 6: "fe80::1"}
_VLAN_MAC, _ROUTER_MAC = "0a:eb:f1:b0:00:01", "0a:eb:f1:b0:00:02"


class Subnet(NamedTuple):
    """Addresses in an ENI's subnet: the node's, and the VPC router's."""

    node: str
    router: str
    bits: int


SUBNETS: Mapping[str, Mapping[int, Subnet]] = {
    ENI: {
        4: Subnet("198.18.2.2", "198.18.2.1", 24),
        6: Subnet("2001:db8:e2::2", "2001:db8:e2::1", 64),
    },
    VLAN: {
        4: Subnet("198.18.3.2", "198.18.3.1", 24),
        6: Subnet("2001:db8:e3::2", "2001:db8:e3::1", 64),
    },
}


def lay_out(lab: Lab) -> None:
    """The first node, its pods, and the network between the nodes."""
    node = lab.node(NODE)
    for number, (name, device) in enumerate(_PODS.items()):
        style = Style(_GATEWAYS, mac=f"0a:eb:f1:b0:01:0{number}")
        rewire(lab, lab.pod(name), device, style)
    for device in (ENI, VLAN):
        peer = f"peer name {_port(device)} netns {lab.underlay.namespace.name}"
        run(node, 4, [f"link add {device} type veth {peer}"])
    run(node, 4, [f"link set {VLAN} address {_VLAN_MAC}"])
    run(lab.underlay, 4, [f"link set {_port(VLAN)} address {_ROUTER_MAC}"])
    for version in VERSIONS:
        run(lab.underlay, version, _router(lab, version))
        run(node, version, _enis(lab, version))
        run(node, version, _rules(lab, version))
        _leave_to_router(lab, version)
    _write_sysctls(lab)
    node.exec(["nft", "-f", "-"], input=_marks(lab))
    lab.underlay.exec(["nft", "-f", "-"], input="".join(_source_check(lab)))


def _port(device: str) -> str:
    return f"vpc-{device.replace('.', '')}"


def _router(lab: Lab, version: int) -> Iterator[str]:
    """The VPC's side: routes for each pod's address to its ENI."""
    for device, subnets in SUBNETS.items():
        subnet = subnets[version]
        yield f"link set {_port(device)} up"
        yield f"addr add {subnet.router}/{subnet.bits} dev {_port(device)}{nodad(version)}"
    first = address_of(lab.node(NODE), version)
    yield f"route add {_pod(lab, FIRST, version)} via {first}"
    yield f"route add {_pod(lab, SECOND, version)} via {SUBNETS[ENI][version].node}"
    yield f"route add {_pod(lab, GROUPED, version)} dev {_port(VLAN)}"
    grouped = address_of(lab.pod(GROUPED), version)
    yield f"neigh add {grouped} lladdr {_VLAN_MAC} dev {_port(VLAN)} nud permanent"
    for node in lab.nodes[1:]:
        own = lab.layout.ranges_of(version).pods(int(node.name.removeprefix("node")))
        yield f"route add {own} via {address_of(node, version)}"


def _enis(lab: Lab, version: int) -> Iterator[str]:
    """setupENINetwork(), and setupVlan(): all traffic goes by the VPC's router."""
    for device, subnets in SUBNETS.items():
        subnet, table = subnets[version], _TABLES[device]
        yield f"link set {device} up"
        if device == ENI:
            place = f"{subnet.node}/{subnet.bits}"
            yield f"addr add {place} dev {device} noprefixroute{nodad(version)}"
        yield f"route add {subnet.router} dev {device} scope link table {table}"
        yield f"route add default via {subnet.router} dev {device} table {table}"
    router = SUBNETS[VLAN][version].router
    yield f"neigh add {router} lladdr {_ROUTER_MAC} dev {VLAN} nud permanent"
    place = _pod(lab, GROUPED, version)
    yield f"route add {place} dev {_PODS[GROUPED]} scope link table {_TABLES[VLAN]}"
    yield f"route del {place} dev {_PODS[GROUPED]}"


def _rules(lab: Lab, version: int) -> Iterator[str]:
    """setupIPBasedContainerRouteRules(), setupIIFBasedContainerRouteRules(), SetupHostNetwork()."""
    eni, vlan = _TABLES[ENI], _TABLES[VLAN]
    for name in (FIRST, SECOND):
        yield f"rule add to {_pod(lab, name, version)} lookup main pref 512"
    yield f"rule add from {_pod(lab, SECOND, version)} lookup {eni} pref 1536"
    yield f"rule add fwmark {_MARK} lookup main pref 1024"
    yield f"rule add from {SUBNETS[ENI][version].node} lookup {eni} pref 32765"
    for device in (VLAN, _PODS[GROUPED]):
        yield f"rule add iif {device} lookup {vlan} pref 10"
    yield "rule add lookup local pref 20"
    yield "rule del lookup local pref 0"


def _leave_to_router(lab: Lab, version: int) -> None:
    """Pods of the node are reachable only by the VPC's router."""
    own = lab.layout.ranges_of(version).pods(1)
    for node in lab.nodes[1:]:
        run(node, version, [f"route del {own}"])


def _write_sysctls(lab: Lab) -> None:
    with lab.underlay.entered():
        for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            Path("/proc/sys/net", name).write_text("1")
    with lab.node(NODE).entered():
        Path("/proc/sys/net/ipv4/tcp_early_demux").write_text("0")
        for device in (*_PODS.values(), VLAN):
            Path("/proc/sys/net/ipv6/conf", device, "forwarding").write_text("0")


def _marks(lab: Lab) -> str:
    """buildIptablesSNATRules(), nftConnmark.Setup(); there are none for IPv6."""
    ranges = lab.layout.ranges_of(4)
    nodes = ", ".join(node.ipv4 for node in lab.nodes)
    inside = f"{{ {ranges.cluster()}, {ranges.services()}, {nodes} }}"
    return f"""
table ip aws-cni {{
  chain mangle-prerouting {{
    type filter hook prerouting priority mangle;
    iifname "{UPLINK}" fib daddr . iif type local ct mark set ct mark or 0x80
    iifname {{ "eni*", "vlan*" }} meta mark set ct mark and 0x80
  }}
  chain nat-prerouting {{
    type nat hook prerouting priority -90;
    fib daddr type local return
    iifname "eni*" jump snat-mark
    meta mark set ct mark and 0x80
  }}
  chain snat-mark {{
    ip daddr {inside} return
    ct mark set ct mark or 0x80
  }}
  chain nat-postrouting {{
    type nat hook postrouting priority srcnat;
    ip daddr {inside} return
    oifname != "vlan*" fib daddr type != local snat to {lab.node(NODE).ipv4}
  }}
}}
"""


def _source_check(lab: Lab) -> Iterator[str]:
    """The VPC drops packets whose source is not the ENI's."""
    yield "table inet vpc {\n chain check {\n  type filter hook prerouting priority raw;\n"
    for device, pod in ((ENI, SECOND), (VLAN, GROUPED)):
        for version, family in ((4, "ip"), (6, "ip6")):
            own = f"{address_of(lab.pod(pod), version)}, {SUBNETS[device][version].node}"
            yield _drop(_port(device), family, own)
    yield " }\n}\ntable bridge vpc {\n chain check {\n  type filter hook prerouting priority 0;\n"
    node, first = lab.node(NODE), lab.pod(FIRST)
    yield _drop(NODE, "ip", f"{node.ipv4}, {first.ipv4}")
    yield _drop(NODE, "ip6", f"{node.ipv6}, {first.ipv6}")
    yield " }\n}\n"


def _drop(device: str, family: str, addresses: str) -> str:
    besides = ", ::, fe80::/10" if family == "ip6" else ""
    return f'  iifname "{device}" {family} saddr != {{ {addresses}{besides} }} counter drop\n'


def _pod(lab: Lab, name: str, version: int) -> str:
    return f"{address_of(lab.pod(name), version)}/{LONGEST[version]}"
