# SPDX-License-Identifier: Apache-2.0
"""kube-proxy's rules on the first node of a lab, for one Service with one pod; TCP only."""

from collections.abc import Iterator
from contextlib import contextmanager

from ebpflb.lab import Lab, LabNode, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.bpf.kube_proxy.rules import rules
from tests.e2e.harness.cluster import address_of

SPEC = ServiceSpec("taken-over", 90, "NodePort", node_port=31999)
POD_PORT = 8080
VERSIONS = (4, 6)
_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def write_rules(lab: Lab, place: str, pod: Member, masquerade: str = "") -> None:
    """place: legacy, nft (both iptables) or nftables. masquerade: there, the statement for TCP."""
    node = lab.node("node1")
    for version, program in zip(VERSIONS, ("iptables", "ip6tables"), strict=True):
        address = address_of(pod, version)
        names = {
            "ip": "ip" if version == 4 else "ip6",
            "ip_type": f"ipv{version}_addr",
            "vip": lab.cluster_ip(SPEC.number, version),
            "pod": address,
            "endpoint": f"{address}:{POD_PORT}" if version == 4 else f"[{address}]:{POD_PORT}",
            "pods": lab.layout.ranges_of(version).cluster(),
            "node_port": SPEC.node_port,
            "host_bits": lab.layout.ranges_of(version).host_bits,
        }
        if place == "nftables":
            text = rules("kube_proxy.nft", names)
            if masquerade:
                text = text.replace("masquerade fully-random", f"meta l4proto tcp {masquerade}")
            node.exec(["nft", "-f", "-"], input=text)
        else:
            restore = [f"{program}-{place}-restore", "--noflush"]
            node.exec(restore, input=rules("kube_proxy.iptables", names))


def remove_rules(node: LabNode) -> None:
    """Delete everything in nftables and iptables on the node."""
    node.exec(["nft", "flush", "ruleset"])
    for program in ("iptables-legacy", "ip6tables-legacy"):
        for table in ("nat", "filter", "mangle"):
            for command in ("-F", "-X"):
                node.exec([program, "-t", table, command])


@contextmanager
def few_source_ports(node: LabNode, last: int = 1087) -> Iterator[tuple[int, int]]:
    """The node leaves these ports to masquerading; an agent requires at least 1,000."""
    ports = (1024, last)
    before = node.exec(["cat", _RANGE]).stdout
    node.exec(["tee", _RANGE], input=f"{ports[1] + 1} 65535")
    yield ports
    node.exec(["tee", _RANGE], input=before)
