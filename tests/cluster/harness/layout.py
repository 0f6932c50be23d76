# SPDX-License-Identifier: Apache-2.0
"""Names and addresses of a cluster; everything follows from its name and number.

    pods --- veth [node1] eth0 ---+
    pods --- veth [node2] eth0 ---+--- br0 [underlay] --- eth0 [control]    API, etcd
             the machine's device-+               +------ eth0 [client]     outside of the cluster

The underlay is a /24 per cluster, so that several can be up and be reached from the machine. All
other ranges are the same in each: they are known inside its namespaces only.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ebpflb.config.cgroup import cgroup_root
from ebpflb.errors import ConfigError

KubeProxy = Literal["iptables", "nftables"]

ROOT = Path("/var/lib/ebpflb-cluster")
CLUSTERS_AT_ONCE = 200
MOST_NODES = 50

SERVICES = "10.96.0.0/16"
SERVICES6 = "fd00:10:96::/112"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
DNS_DOMAIN = "cluster.local"
PODS = "10.244.0.0/16"
PODS6 = "fd00:10:244::/48"
# Load-balancer and external IPs: the client routes them to the first node.
EXTERNAL = "203.0.113.0/24"
EXTERNAL6 = "2001:db8:113::/64"
API_PORT = 6443

_HOSTS = {"gateway": 1, "control": 2, "peer1": 3, "peer2": 4, "client": 200, "machine": 254}
_NODES = 10
_CGROUPS = "ebpflb-cluster"
_V1_ROOT = Path("/sys/fs/cgroup")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster's name, its number on this machine and how many nodes it has."""

    name: str
    index: int
    nodes: int

    @property
    def folder(self) -> Path:
        """The folder of the cluster's files."""
        return ROOT / self.name

    @property
    def machine_device(self) -> str:
        """The underlay's end in the machine's own namespace."""
        return f"ebpflb-cl{self.index}"

    def namespace(self, member: str) -> str:
        """The name below /run/netns. member: underlay, control, client, node1, ..."""
        return f"ebpflb-{self.name}-{member}"

    def members(self) -> list[str]:
        """Every namespace with an address, except the underlay."""
        return ["control", "client", *self.node_names()]

    def node_names(self) -> list[str]:
        """node1, node2, ..."""
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    def address(self, member: str) -> str:
        """A member's address on the underlay; also of `gateway` and `machine`."""
        return f"198.19.{self.index}.{_host(member)}"

    def address6(self, member: str) -> str:
        """A member's IPv6 address."""
        return f"fd00:198:19:{self.index:x}::{_host(member):x}"

    def pods(self, node: str) -> str:
        """The pod range of a node."""
        return f"10.244.{_number(node)}.0/24"

    def pods6(self, node: str) -> str:
        """The IPv6 pod range of a node."""
        return f"fd00:10:244:{_number(node):x}::/64"

    def cgroup_path(self, member: str = "") -> str:
        """The path below each cgroup hierarchy, with a leading slash as kubelet wants it."""
        return f"/{_CGROUPS}/{self.name}/{member}".rstrip("/")

    def cgroup(self, member: str = "") -> Path:
        """The directory in cgroup v2, which holds every process of the member."""
        return Path(cgroup_root() + self.cgroup_path(member))


def v1_hierarchies() -> list[Path]:
    """Where cgroup v1 controllers are mounted; none on a machine with v2 only."""
    return [
        Path(fields[1])
        for line in Path("/proc/mounts").read_text().splitlines()
        if (fields := line.split())[2] == "cgroup" and Path(fields[1]).parent == _V1_ROOT
    ]


def check_name(name: str) -> str:
    """The name, if it is valid. ConfigError otherwise."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"cluster {name!r}: a name has 1 to 20 of a-z, 0-9 and - in the middle")
    return name


def _host(member: str) -> int:
    return _HOSTS.get(member) or _NODES + _number(member)


def _number(node: str) -> int:
    return int(node.removeprefix("node"))
