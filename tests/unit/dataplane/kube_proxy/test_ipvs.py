# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.kube_proxy.ipvs import (
    VirtualService,
    own_services,
    parse_sets,
    virtual_services,
)

LISTED = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A60000A:0050 rr
  -> 0A010002:1F90      Masq    1      0          0
UDP  0A60000A:0035 rr
TCP  C0000201:7580 rr
TCP  C0000209:01BB wlc persistent 300 FFFFFFFF
SCTP [fd00:0096:0000:0000:0000:0000:0000:000a]:0050 rr
FWM  00000001 rr
"""


def test_virtual_services_are_read_as_the_kernel_lists_them():
    assert list(map(str, virtual_services(LISTED))) == [
        "TCP 10.96.0.10:80",
        "UDP 10.96.0.10:53",
        "TCP 192.0.2.1:30080",
        "TCP 192.0.2.9:443",
        "SCTP [fd00:96::a]:80",
    ]
    assert virtual_services("") == []


def test_those_of_others_are_not_kube_proxys():
    own = own_services(virtual_services(LISTED), {"10.96.0.10", "fd00:96::a"}, {("TCP", 30080)})
    assert VirtualService("TCP", "192.0.2.1", 30080) in own
    assert len(own) == 4
    assert VirtualService("TCP", "192.0.2.9", 443) not in own


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("add KUBE-NODE-PORT-TCP 30080", ("TCP", 30080)),
        ("add KUBE-6-NODE-PORT-LOCAL-UDP 30053", ("UDP", 30053)),
        ("add KUBE-NODE-PORT-SCTP-HASH 192.0.2.1,sctp:30090", ("SCTP", 30090)),
        ("add KUBE-6-NODE-PORT-LOCAL-SCTP-HAS 2001:db8::1,sctp:30091", ("SCTP", 30091)),
        ("add KUBE-HEALTH-CHECK-NODE-PORT 32000", None),
        ("add KUBE-CLUSTER-IP 10.96.0.10,tcp:80", None),
        ("add MY-KUBE-NODE-PORT-TCP 30080", None),
    ],
)
def test_node_ports_are_read_from_their_sets(line, port):
    assert parse_sets(line).node_ports == ({port} if port else set())


def test_only_the_sets_that_kube_proxy_makes_are_its_own():
    saved = "\n".join(
        f"create {name} hash:ip family inet"
        for name in (
            "KUBE-LOOP-BACK",
            "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
            "KUBE-OF-MINE",
            "cali40all",
        )
    )
    names = ("KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", "KUBE-LOOP-BACK")
    assert parse_sets(f"{saved}\nadd KUBE-LOOP-BACK 10.1.0.2").names == names
