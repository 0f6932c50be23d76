# SPDX-License-Identifier: Apache-2.0
"""A packet that the pod's node cannot deliver is returned to the sending node, which masquerades
it.
"""

import pytest
from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import CtFlag
from tests.bpf.dsr.tunnel import (
    DROPPED,
    PEER,
    STRANGER,
    arrive,
    place_here,
    pod_elsewhere,
    pod_here,
    returned,
    served,
    unwrapped,
    wrapped,
)
from tests.bpf.harness.datapath import SERVICE, Datapath, Result, Verdict
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, assert_same, changed
from tests.bpf.harness.services import client

# At the pod's node


@pytest.mark.parametrize(
    "wrong", ["port", "address", "pod", "process", "pod's port", "protocol", "Service"]
)
def test_a_tunnel_leads_to_nothing_but_endpoints_of_the_service(
    dsr: Datapath, node: Node, kind: Kind, wrong: str
):
    pod, index = pod_here(dsr, kind)
    frontend = served(dsr, kind, index)
    to = pod
    if wrong == "port":
        frontend = frontend._replace(port=81)
    elif wrong == "address":
        frontend = frontend._replace(address=STRANGER[str(kind.net)])
    elif wrong == "pod":
        to = End(kind.net.pod, pod.port)
    elif wrong == "process":
        to = End(kind.net.node, 22)
    elif wrong == "pod's port":
        to = pod._replace(port=22)
    else:
        odd = {"proto": kind.proto ^ 1} if wrong == "protocol" else {"service": SERVICE + 1}
        (known,) = (key for key, _ in dsr.maps["lb_pods_here"].items())
        dsr.maps["lb_pods_here"].delete_batch([known])
        place_here(dsr, kind, pod, index, **odd)
    request = kind.frame(client(kind), frontend)

    result = arrive(dsr, node, wrapped(kind, request, to))

    assert result.verdict is Verdict.REDIRECT
    found = unwrapped(kind, result.packet)
    assert (found.source, found.target) == (kind.net.node, PEER[kind.net])
    assert (found.pod, found.is_returned) == (to, True)
    assert found.packet == bytes(request.payload)
    assert not dsr.short()
    assert not dsr.drops()


def test_what_follows_is_not_of_a_tunnel(dsr: Datapath, node: Node, kind: Kind):
    """The next packet on this CPU is not taken for one from a tunnel."""
    pod, index = pod_here(dsr, kind)
    frontend = served(dsr, kind, index)
    request = kind.frame(client(kind), frontend)
    arrive(dsr, node, wrapped(kind, request, pod._replace(port=22)))
    assert_same(arrive(dsr, node, request).packet, changed(request, target=pod))


# At the node that sent it


def sent(datapath: Datapath, node: Node, kind: Kind) -> tuple[Packet, End]:
    """A request that left in a tunnel, and the pod that it was for."""
    pod, index = pod_elsewhere(datapath, kind)
    request = kind.frame(client(kind), served(datapath, kind, index))
    assert unwrapped(kind, arrive(datapath, node, request).packet).pod == pod
    return request, pod


def assert_masqueraded(kind: Kind, result: Result, pod: End) -> End:
    """Returns the source address and port with which it leaves."""
    assert result.verdict is Verdict.REDIRECT
    network = result.packet.payload
    assert (network.src, network.dst) == (kind.net.overlay, pod.address)
    assert network.payload.dport == pod.port
    return End(network.src, network.payload.sport)


def test_it_leaves_again_masqueraded(dsr: Datapath, node: Node, kind: Kind):
    request, pod = sent(dsr, node, kind)
    source = assert_masqueraded(kind, arrive(dsr, node, returned(kind, request, pod)), pod)

    reply = kind.frame(pod, source, "SA")
    result = dsr.run("lb_host_ingress", reply, ifindex=node.overlay.ifindex)

    assert result.verdict is Verdict.REDIRECT
    frontend = End(request.payload.dst, request.payload.payload.dport)
    assert result.packet.payload.src == frontend.address
    assert result.packet.payload.dst == client(kind).address
    assert not any(each.flags & CtFlag.LB_CT_DSR for each in dsr.short().values())
    assert not dsr.drops()


def test_the_flow_stays_masqueraded(dsr: Datapath, node: Node, kind: Kind):
    """Later packets, and those that were in the tunnel at the same time."""
    request, pod = sent(dsr, node, kind)
    source = assert_masqueraded(kind, arrive(dsr, node, returned(kind, request, pod)), pod)
    for frame in (request, returned(kind, request, pod), request):
        assert assert_masqueraded(kind, arrive(dsr, node, frame), pod) == source
    assert len(dsr.short()) == 2


def test_a_flow_that_had_lasted_is_masqueraded_too(dsr: Datapath, node: Node, udp: Kind):
    request, pod = sent(dsr, node, udp)
    ((key, entry),) = dsr.maps["lb_ct_udp"].items()
    dsr.maps["lb_ct_udp"].delete_batch([key])
    dsr.maps["lb_ct_dsr"].update(key, entry)
    assert_masqueraded(udp, arrive(dsr, node, returned(udp, request, pod)), pod)
    assert not dsr.tunneled()


def test_another_endpoint_may_get_it(dsr: Datapath, node: Node, kind: Kind):
    """On this node, because the backend is chosen again."""
    request, pod = sent(dsr, node, kind)
    here, index = pod_here(dsr, kind)
    served(dsr, kind, index)
    result = arrive(dsr, node, returned(kind, request, pod))
    assert_same(result.packet, changed(request, target=here))
    assert_same(arrive(dsr, node, request).packet, changed(request, target=here))


def test_what_is_for_no_service_ends_here(dsr: Datapath, node: Node, kind: Kind):
    request, pod = sent(dsr, node, kind)
    request = changed(request, target=End(STRANGER[str(kind.net)], 80))
    assert arrive(dsr, node, returned(kind, request, pod)).verdict is Verdict.DROP
    assert dsr.drops() == DROPPED


def test_the_midst_of_an_unknown_connection_ends_here(dsr: Datapath, node: Node, tcp: Kind):
    request, pod = sent(dsr, node, tcp)
    frontend = End(request.payload.dst, request.payload.payload.dport)
    stray = tcp.frame(client(tcp)._replace(port=1), frontend, "PA")
    assert arrive(dsr, node, returned(tcp, stray, pod)).verdict is Verdict.DROP
    assert dsr.drops() == DROPPED
