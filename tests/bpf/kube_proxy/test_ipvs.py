# SPDX-License-Identifier: Apache-2.0
"""What kube-proxy leaves behind in ipvs mode, as far as it needs no ipvs in the kernel."""

import socket

import pytest

from ebpflb.dataplane.kube_proxy.removal import Removed, remove_kube_proxy
from tests.bpf.attach.network import ip, run
from tests.bpf.kube_proxy.gateway import BACKENDS, saved

SETS = """\
create KUBE-CLUSTER-IP hash:ip,port family inet
add KUBE-CLUSTER-IP 10.96.0.10,tcp:80
create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6
create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
add KUBE-NODE-PORT-TCP 30080
create KUBE-OF-MINE hash:ip family inet
add KUBE-OF-MINE 192.0.2.7
create others hash:net family inet
"""
RULES = """\
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m set --match-set KUBE-OF-MINE src -j ACCEPT
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP src,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
COMMIT
*filter
:KUBE-IPVS-FILTER - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SOURCE-RANGES-FIREWALL - [0:0]
-A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
-A KUBE-PROXY-FIREWALL -j KUBE-SOURCE-RANGES-FIREWALL
COMMIT
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_sets_and_device_go_after_the_rules_that_need_them(gateway, backend):
    run("ipset", "restore", stdin=SETS)
    run(f"iptables-{backend}-restore", stdin=RULES)
    # A dummy device on real nodes; its type does not matter.
    ip("tuntap add kube-ipvs0 mode tun\naddr add 10.96.0.10/32 dev kube-ipvs0")
    removed = remove_kube_proxy(dry_run=False)
    assert removed.devices == ("kube-ipvs0",)
    assert removed.ip_sets == (
        "KUBE-6-LOAD-BALANCER-SOURCE-CID",
        "KUBE-CLUSTER-IP",
        "KUBE-NODE-PORT-TCP",
    )
    assert "kube-ipvs0" not in [name for _, name in socket.if_nameindex()]
    assert set(run("ipset", "list", "-name").split()) == {"KUBE-OF-MINE", "others"}
    assert "192.0.2.7" in run("ipset", "list", "KUBE-OF-MINE")
    rules = saved(backend)[4]
    assert "KUBE-" not in rules.replace("--match-set KUBE-OF-MINE", "")
    assert "-A PREROUTING -m set --match-set KUBE-OF-MINE src -j ACCEPT\n" in rules
    assert remove_kube_proxy(dry_run=False) == Removed()
