# SPDX-License-Identifier: Apache-2.0
"""Hash lookups per connection and per packet, counted in the running programs.

The target for the first packet of a flow is 4, and none has more: both flow tables of its protocol,
the frontend, and whether an established flow or a stream has the reply tuple. On a node that takes
part in direct server return, as here, host ingress has one more: whether a tunneled flow has it. A
SYN ACK is compared with the SYN that it answers.
"""

from collections.abc import Iterator

import pytest

from ebpflb.dataplane.layout.capacity import UPLINKS
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.load.source_text import source_text
from ebpflb.model.address import Protocol
from tests.bpf.harness.asker import Asker
from tests.bpf.harness.asking import asking
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import Loaded, load
from tests.bpf.harness.lookups import FLOWS, Hook, counting, looks, run
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind
from tests.bpf.harness.services import cluster_ip, node_addresses, remote_backend, same_place

FIRST, IN_TUNNEL = 4, 1
# An address or a device whose array index belongs to another one.
IN_HASH = 1
KNOWN, SYN_ACK, FOREIGN = 2, 5, 2
# The frontend, the process's network namespace, and whether that one is nested in a pod.
AT_SOCKET = 3


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The programs with counters."""
    return load(tmp_path_factory.mktemp("bpffs"), counting(source_text()))


@pytest.fixture
def counts(counted: Loaded, node: Node) -> Datapath:
    datapath = Datapath(counted)
    datapath.reset()
    node_addresses(datapath, node)
    return datapath


@pytest.fixture(scope="module")
def counted_asker(counted: Loaded, machine: Node) -> Iterator[Asker]:
    with asking(counted, machine, "lookups") as made:
        yield made


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow(counts: Datapath, node: Node, kind: Kind, name: str):
    flow = FLOWS[name](counts, node, kind)
    costs = flow.costs(counts, kind)
    in_tunnel = IN_TUNNEL if flow.there.program == "lb_host_ingress" else 0
    assert 0 < costs.first <= FIRST + in_tunnel
    assert 0 < costs.answer <= (SYN_ACK if kind.proto is Protocol.TCP else KNOWN)
    assert 0 < costs.later <= KNOWN


def test_a_node_port_where_another_address_has_the_place(counts: Datapath, node: Node, kind: Kind):
    flow = FLOWS["NodePort to a pod here"](counts, node, kind)
    counts.address(same_place(kind.net.node), AddrFlag.LB_ADDR_CLUSTER_IP)
    assert flow.costs(counts, kind).first == FIRST + IN_TUNNEL + IN_HASH


def test_a_node_port_where_another_device_has_the_place(counts: Datapath, node: Node, kind: Kind):
    flow = FLOWS["NodePort to a pod elsewhere"](counts, node, kind)
    counts.device(node.overlay.ifindex + UPLINKS, snat4="192.0.2.99", snat6="2001:db8:2::99")
    assert flow.costs(counts, kind).first == FIRST + IN_TUNNEL + IN_HASH


@pytest.mark.parametrize("program", ["lb_host_ingress", "lb_pod_ingress", "lb_pod_egress"])
def test_a_packet_that_is_not_service_traffic(counts: Datapath, kind: Kind, program: str):
    packet = kind.frame(End(kind.net.client, 4000), End(kind.net.remote, 4001), "A")
    assert run(counts, Hook(program), packet)[0] == 0
    near = kind.frame(End(kind.net.client, 4000), End(kind.net.node, 4001), "A")
    assert run(counts, Hook(program), near)[0] <= FOREIGN


def test_a_process_of_the_host(counts: Datapath, counted_asker: Asker, kind: Kind):
    _, index = remote_backend(counts, kind)
    frontend = cluster_ip(counts, kind, [index])
    looks(counts.maps)
    assert counted_asker.connect(frontend, kind.proto) != frontend
    found = looks(counts.maps)
    # UDP also checks whether the choice is new.
    assert found == AT_SOCKET + (kind.proto is Protocol.UDP)


def test_a_process_that_connects_to_no_service(counts: Datapath, counted_asker: Asker, kind: Kind):
    _, index = remote_backend(counts, kind)
    cluster_ip(counts, kind, [index])
    looks(counts.maps)
    target = End(kind.net.client, 4001)
    assert counted_asker.connect(target, kind.proto) == target
    assert looks(counts.maps) == 0
