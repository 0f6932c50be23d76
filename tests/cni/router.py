# SPDX-License-Identifier: Apache-2.0
"""A router outside the cluster that learns routes from the nodes: FRR of Debian 12.

It is the gateway of the underlay, to which the default routes of all members lead.
"""

from pathlib import Path

from ebpflb.lab import namespaces
from tests.cluster.harness.cluster import Cluster
from tests.cni.debian_folder import debian_folder

VERSION = "8.4.4"
ROUTER_AS, NODES_AS = 64500, 64501

# Both daemons share files in /run, which no other router may see.
_START = """\
set -e
mount -t tmpfs tmpfs "$1/run"
mount --rbind /proc "$1/proc"
mount --rbind /dev "$1/dev"
cp "$2" "$1/run/bgpd.conf"
install -d -o "$(stat -c %u "$1/etc/frr")" "$1/run/frr"
chroot "$1" /usr/lib/frr/zebra --log stdout --vty_port 0 &
exec chroot "$1" /usr/lib/frr/bgpd --log stdout --vty_port 0 --config_file /run/bgpd.conf
"""
_CONFIG = """\
router bgp {router}
 no bgp ebgp-requires-policy
 neighbor nodes peer-group
 neighbor nodes remote-as {nodes}
 bgp listen range {underlay} peer-group nodes
"""
# The client and the nodes are on one link: without redirects, all its packets pass the router.
_SYSCTLS = {
    "ipv4/ip_forward": "1",
    "ipv4/fib_multipath_hash_policy": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/br0/rp_filter": "0",
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/br0/send_redirects": "0",
}


def folder() -> Path:
    """The folder of its programs; the first time takes minutes."""
    return debian_folder("bookworm", "frr")


def start(cluster: Cluster) -> str:
    """Start it, for the nodes to peer with, and return its address."""
    root = folder()
    layout = cluster.control_plane.layout
    netns = namespaces.path_of(layout.namespace("underlay"))
    with namespaces.entered(netns):
        namespaces.write_sysctls(_SYSCTLS)
    address = layout.address("gateway")
    underlay = f"{address.rpartition('.')[0]}.0/24"
    config = layout.folder / "bgpd.conf"
    config.write_text(_CONFIG.format(router=ROUTER_AS, nodes=NODES_AS, underlay=underlay))
    enter = ["nsenter", f"--net={netns}"]
    in_root = ["sh", "-c", _START, "sh", str(root), str(config)]
    listening = [*enter, "ss", "-Hltn", "sport = :179"]
    frr = cluster.client.start("frr", [*enter, "unshare", "--mount", *in_root])
    frr.wait_until(lambda: bool(cluster.client.exec(listening).stdout), "listening")
    return address
