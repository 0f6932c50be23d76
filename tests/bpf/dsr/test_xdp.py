# SPDX-License-Identifier: Apache-2.0
"""XDP and tc build the same tunnels, and each continues the other's connections."""

from collections.abc import Sequence

import pytest
from scapy.layers.l2 import Ether

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES
from ebpflb.dataplane.layout.enums import XdpResult
from tests.bpf.dsr.tunnel import OVERHEAD, pod_elsewhere, pod_here, served, unwrapped, wrapped
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction
from tests.bpf.harness.node import PEER_MAC, Node
from tests.bpf.harness.packets import IPV4, IPV6, NODE_MAC, TCP_KINDS, End, Kind
from tests.bpf.harness.services import CLUSTER_PORT, client
from tests.bpf.xdp.snapshot import LINK, Snapshot, snapshot

pytestmark = pytest.mark.usefixtures("one_cpu", "dsr")

WAYS = ([False], [True], [False, True], [True, False], [True, True, False])


def outcome(
    datapath: Datapath, node: Node, kind: Kind, at_xdp: Sequence[bool]
) -> tuple[list[bytes], Snapshot]:
    """What the client's frames become, without link headers; and the resulting maps."""
    for name in FLOW_TABLES:
        datapath.maps[name].delete_batch([key for key, _ in datapath.maps[name].items()])
    for name in ("lb_count_front", "lb_count_back"):
        datapath.clear(name)
    sent = []
    steps = ("S", "S", "A", "PA", "FA", "A", "R", "S") if kind in TCP_KINDS else ("S",) * 4
    frontend = End(kind.net.external_ip, CLUSTER_PORT)
    for number, flags in enumerate(steps):
        frame = bytes(kind.frame(client(kind), frontend, flags))
        if at_xdp[number % len(at_xdp)]:
            action, out = datapath.run_xdp(frame, ifindex=node.uplink.ifindex)
            assert action is XdpAction.TX
            assert (Ether(out).src, Ether(out).dst) == (NODE_MAC, PEER_MAC)
        else:
            verdict, out = datapath.run_bytes("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
            assert verdict == Verdict.REDIRECT
        assert unwrapped(kind, Ether(out)).packet == frame[LINK:]
        sent.append(out[LINK:])
    return sent, snapshot(datapath)


def test_tc_and_xdp_go_on_with_each_others_flows(dsr: Datapath, node: Node, kind: Kind):
    datapath = dsr
    datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, mtu=1500, xdp=True)
    _, index = pod_elsewhere(datapath, kind)
    served(datapath, kind, index)
    outcomes = [outcome(datapath, node, kind, way) for way in WAYS]
    for each in outcomes[1:]:
        assert each == outcomes[0]


def test_what_does_not_fit_is_left_to_tc(dsr: Datapath, node: Node, kind: Kind):
    dsr.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, mtu=1500, xdp=True)
    _, index = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, index)
    headers = len(kind.frame(client(kind), frontend, payload=b"")) - LINK
    payload = bytes(1500 - OVERHEAD[kind.net] - headers + 1)
    frame = bytes(kind.frame(client(kind), frontend, payload=payload))
    assert dsr.run_xdp(frame, ifindex=node.uplink.ifindex) == (XdpAction.PASS, frame)
    assert dsr.xdp_results()[XdpResult.LB_XDP_ROUTE] == 1
    assert not dsr.short()


def test_what_arrives_in_a_tunnel_is_left_to_tc(dsr: Datapath, node: Node, kind: Kind):
    pod, index = pod_here(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    frame = bytes(wrapped(kind, request, pod))
    assert dsr.run_xdp(frame, ifindex=node.uplink.ifindex) == (XdpAction.PASS, frame)
    assert not +dsr.xdp_results()


def test_a_tunneled_packet_that_tc_drops_does_not_concern_the_next_one(
    dsr: Datapath, node: Node, tcp: Kind
):
    dsr.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, mtu=1500, xdp=True)
    to, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)
    for flags in ("S", "A", "PA", "A"):
        frame = bytes(tcp.frame(client(tcp), frontend, flags))
        assert dsr.run_xdp(frame, ifindex=node.uplink.ifindex)[0] is XdpAction.TX
    for_nobody = tcp.frame(client(tcp)._replace(port=4001), frontend, "PA")
    dropped = bytes(wrapped(tcp, for_nobody, to))
    verdict, _ = dsr.run_bytes("lb_host_ingress", dropped, ifindex=node.uplink.ifindex)
    assert verdict == Verdict.DROP
    assert dsr.run_xdp(frame, ifindex=node.uplink.ifindex)[0] is XdpAction.TX
