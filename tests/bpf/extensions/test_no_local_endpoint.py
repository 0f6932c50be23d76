# SPDX-License-Identifier: Apache-2.0
"""Policy Local without an endpoint on this node, where the Service asks to let packets pass."""

import pytest

from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    DropReason,
    FrontendTypeCode,
    IfEmptyCode,
    SettingFlag,
)
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction, assert_untouched
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind
from tests.bpf.harness.services import CLUSTER_PORT, client, local_backend

PASS, DROP = IfEmptyCode.LB_EMPTY_PASS, IfEmptyCode.LB_EMPTY_DROP


def vip(datapath: Datapath, kind: Kind, others: list[int], if_empty: IfEmptyCode = PASS) -> End:
    place = End(kind.net.external_ip, CLUSTER_PORT)
    datapath.address(place.address, AddrFlag.LB_ADDR_EXTERNAL | AddrFlag.LB_ADDR_UNSERVED_REJECT)
    datapath.frontend(
        place, kind.proto, others=others, if_empty=if_empty, kind=FrontendTypeCode.LB_LOAD_BALANCER
    )
    return place


@pytest.mark.usefixtures("addresses")
def test_a_new_connection_passes(datapath: Datapath, kind: Kind):
    place = vip(datapath, kind, [])
    assert_untouched(datapath, "lb_host_ingress", kind.frame(client(kind), place))


@pytest.mark.usefixtures("addresses")
def test_without_the_wish_it_is_dropped(datapath: Datapath, kind: Kind):
    request = kind.frame(client(kind), vip(datapath, kind, [], DROP))
    assert datapath.run("lb_host_ingress", request).verdict is Verdict.DROP
    assert datapath.drops() == {DropReason.LB_DROP_NO_LOCAL_ENDPOINT: 1}


@pytest.mark.usefixtures("addresses")
@pytest.mark.parametrize("is_here", [False, True])
def test_the_middle_of_a_connection_passes(datapath: Datapath, tcp: Kind, *, is_here: bool):
    """It may be one to an endpoint of another node, even if there is one here by now."""
    datapath.settings(flags=SettingFlag.LB_SETTING_RESETS)
    place = vip(datapath, tcp, [local_backend(datapath, tcp)[1]] if is_here else [])
    assert_untouched(datapath, "lb_host_ingress", tcp.frame(client(tcp), place, "A"))


@pytest.mark.usefixtures("addresses")
def test_without_the_wish_the_middle_of_a_connection_is_reset(datapath: Datapath, tcp: Kind):
    datapath.settings(flags=SettingFlag.LB_SETTING_RESETS)
    place = vip(datapath, tcp, [], DROP)
    result = datapath.run("lb_host_ingress", tcp.frame(client(tcp), place, "A"))
    assert result.verdict is Verdict.REDIRECT


@pytest.mark.usefixtures("addresses")
def test_an_endpoint_here_gets_new_connections(datapath: Datapath, kind: Kind):
    backend, index = local_backend(datapath, kind)
    request = kind.frame(client(kind), vip(datapath, kind, [index]))
    result = datapath.run("lb_host_ingress", request)
    assert (result.verdict, result.packet.payload.dst) == (Verdict.PASS, backend.address)


@pytest.mark.usefixtures("addresses")
def test_it_passes_xdp(datapath: Datapath, node: Node, kind: Kind):
    datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, xdp=True)
    frame = bytes(kind.frame(client(kind), vip(datapath, kind, [])))
    before = datapath.xdp_results()
    assert datapath.run_xdp(frame, ifindex=node.uplink.ifindex) == (XdpAction.PASS, frame)
    assert datapath.xdp_results() == before
