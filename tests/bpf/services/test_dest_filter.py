# SPDX-License-Identifier: Apache-2.0
"""lb_dest_filter: packets of an open connection pass although its Service is deleted; others do
not.
"""

import time

import pytest

from ebpflb.dataplane.flows.expiry import Expiry
from ebpflb.dataplane.layout.structs import LbDest
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import parse_address
from ebpflb.model.plan import Backend, Choice, Frontend, FrontendKey, FrontendType, IfEmpty
from ebpflb.model.service import ServiceName, ServicePortName, TrafficPolicy
from tests.bpf.harness.datapath import Datapath, assert_untouched
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import End, Kind, assert_same, changed
from tests.bpf.harness.services import BACKEND_PORT, NODE_PORT, WILDCARD, client, node_addresses

WEB = ServiceName("default", "web")
HOUR = 3600 * 10**9
PLACES = {FrontendType.NODE_PORT: NODE_PORT, FrontendType.LOAD_BALANCER: 443}


def frontend(kind: Kind, chosen: FrontendType) -> Frontend:
    """To a pod on the node."""
    pod = Backend(parse_address(kind.net.local), BACKEND_PORT, local=True, terminating=False)
    choice = Choice((pod,), IfEmpty.REFUSE)
    is_node_port = chosen is FrontendType.NODE_PORT
    address = WILDCARD[kind.net] if is_node_port else kind.net.external_ip
    return Frontend(
        key=FrontendKey(parse_address(address), PLACES[chosen], kind.proto),
        type=chosen,
        service=ServicePortName(*WEB, "", kind.proto),
        local=choice,
        others=choice,
        internal_policy=TrafficPolicy.CLUSTER,
        external_policy=TrafficPolicy.CLUSTER,
        affinity_timeout=0,
    )


class Passes:
    """The agent's pass over all flows, at a time that a test chooses."""

    def __init__(self, datapath: Datapath, sync: Sync) -> None:
        self._sync = sync
        self._ahead = 0
        self._expiry = Expiry(
            datapath.maps, clock=lambda: time.monotonic_ns() + self._ahead, budget=1
        )

    def play(self, ahead: int = 0) -> None:
        """Run one pass. ahead: in ns."""
        self._ahead = ahead
        expired = self._expiry.step(self._sync.idle())
        while expired.unused is None:
            expired = self._expiry.step()
        self._sync.forget(expired.unused)


def passing(datapath: Datapath, index: int) -> int:
    found = datapath.maps["lb_dest_filter"].lookup(u32(index)) or b""
    return int(LbDest.from_buffer_copy(found).flags)


@pytest.mark.parametrize("chosen", PLACES)
def test_packets_pass_until_the_connection_has_ended(
    datapath: Datapath, node: Node, tcp: Kind, chosen: FrontendType
):
    datapath.clear("lb_dest_filter")
    node_addresses(datapath, node)
    sync = Sync(datapath.maps, grace=0)
    sync.load()
    passes = Passes(datapath, sync)
    asked = frontend(tcp, chosen)
    is_node_port = chosen is FrontendType.NODE_PORT
    target = End(tcp.net.node if is_node_port else tcp.net.external_ip, PLACES[chosen])
    index = target.port if is_node_port else int.from_bytes(asked.key.address[14:], "big")
    sync.apply({WEB: [asked]})
    backend = End(tcp.net.local, BACKEND_PORT)
    ifindex = node.uplink.ifindex

    def is_translated(flags: str) -> None:
        packet = tcp.frame(client(tcp), target, flags)
        result = datapath.run("lb_host_ingress", packet, ifindex=ifindex)
        assert_same(result.packet, changed(packet, target=backend))

    is_translated("S")
    sync.apply({WEB: ()})
    for _ in range(2):
        passes.play()
        assert passing(datapath, index)
        is_translated("A")
    passes.play(2 * HOUR)
    passes.play(2 * HOUR)
    assert not passing(datapath, index)
    assert_untouched(datapath, "lb_host_ingress", tcp.frame(client(tcp), target), ifindex=ifindex)
