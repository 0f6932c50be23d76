# SPDX-License-Identifier: Apache-2.0
"""lb_flow_filter: a packet is looked up exactly if a flow's mark matches."""

from array import array
from collections.abc import Iterator
from sys import byteorder

import pytest

from ebpflb.dataplane.flows.flow_filter import FilterMarks, flow_mark
from tests.bpf.harness.datapath import FILTERS, Datapath, assert_untouched
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, assert_same, changed
from tests.bpf.harness.services import (
    CLIENT_PORT,
    cluster_ip,
    local_backend,
    node_addresses,
    node_port,
    pod,
    remote_backend,
)

LATER = 1 << 60


@pytest.fixture(autouse=True)
def filters(datapath: Datapath) -> Iterator[None]:
    """Empty filters, before and after: other tests leave bits set."""
    for name in FILTERS:
        datapath.clear(name)
    yield
    datapath.clear("lb_flow_filter")


def marks(datapath: Datapath) -> "array[int]":
    chunks = datapath.maps["lb_flow_filter"].chunks()
    return array("I", b"".join(chunk.values for chunk in chunks))


def crowd(datapath: Datapath) -> None:
    """Mark every place except those in use, which makes a pass worthwhile."""
    table = datapath.maps["lb_flow_filter"]
    made = [(key, value) for key, value in table.items() if not any(value)]
    table.update_batch([(key, (1).to_bytes(4, byteorder)) for key, _ in made])


def test_a_packet_without_a_mark_is_not_looked_up(datapath: Datapath, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    datapath.settings(filter_floor=1)
    reply = kind.frame(backend, pod(kind), "SA")
    assert_same(datapath.run("lb_pod_egress", reply).packet, changed(reply, source=frontend))

    datapath.clear("lb_flow_filter")
    assert_untouched(datapath, "lb_pod_egress", reply)
    datapath.settings(filter_floor=0)
    assert_same(datapath.run("lb_pod_egress", reply).packet, changed(reply, source=frontend))


def test_a_mark_is_where_the_agent_looks_for_it(datapath: Datapath, kind: Kind):
    """A pass keeps exactly the marks of flows."""
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    (marked,) = [place for place, mark in enumerate(marks(datapath)) if mark]
    crowd(datapath)
    finished(FilterMarks(datapath.maps, 16, clock=lambda: LATER))

    assert [place for place, mark in enumerate(marks(datapath)) if mark > 1] == [marked]
    assert marks(datapath)[marked] == flow_mark(LATER)
    reply = kind.frame(backend, pod(kind), "SA")
    assert_same(datapath.run("lb_pod_egress", reply).packet, changed(reply, source=frontend))


def finished(filter_: FilterMarks) -> None:
    for _ in range(100):
        if not filter_.step():
            return
    raise AssertionError("it goes on and on")


def test_replies_from_outside_find_their_flow_after_a_pass(
    datapath: Datapath, node: Node, kind: Kind
):
    node_addresses(datapath, node)
    backend, index = local_backend(datapath, kind)
    client, frontend = End(kind.net.client, CLIENT_PORT), node_port(datapath, kind, [index])
    ifindex = node.uplink.ifindex
    datapath.run("lb_host_ingress", kind.frame(client, frontend), ifindex=ifindex)
    crowd(datapath)
    finished(FilterMarks(datapath.maps, 16, clock=lambda: LATER))
    reply = kind.frame(backend, client, "SA")
    result = datapath.run("lb_host_egress", reply, ifindex=ifindex)
    assert_same(result.packet, changed(reply, source=frontend))
