# SPDX-License-Identifier: Apache-2.0
"""filter.h: packets to other destinations than Services pass early."""

import pytest

from ebpflb.dataplane.layout.enums import AddrFlag, Hook
from tests.bpf.harness.datapath import FILTERS, Datapath, assert_untouched
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, assert_same, changed
from tests.bpf.harness.services import (
    CLIENT_PORT,
    WILDCARD,
    cluster_ip,
    local_backend,
    node_addresses,
    node_port,
    pod,
    remote_backend,
)


@pytest.fixture(autouse=True)
def filters(datapath: Datapath) -> None:
    """Empty filters: other tests leave bits set."""
    for name in FILTERS:
        datapath.clear(name)


def test_an_address_that_is_not_in_the_filter_is_not_looked_up(datapath: Datapath, kind: Kind):
    _, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    datapath.clear("lb_dest_filter")
    for program in ("lb_pod_ingress", "lb_host_ingress"):
        assert_untouched(datapath, program, kind.frame(pod(kind), frontend))


def test_a_reply_is_reversed_because_its_flow_is_in_the_filter(datapath: Datapath, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    reply = kind.frame(backend, pod(kind), "SA")
    assert_same(datapath.run("lb_pod_egress", reply).packet, changed(reply, source=frontend))

    datapath.clear("lb_reply_filter")
    assert_untouched(datapath, "lb_pod_egress", reply)


def test_a_reply_to_the_outside_is_in_the_filter(datapath: Datapath, node: Node, kind: Kind):
    node_addresses(datapath, node)
    backend, index = local_backend(datapath, kind)
    client, frontend = End(kind.net.client, CLIENT_PORT), node_port(datapath, kind, [index])
    ifindex = node.uplink.ifindex
    datapath.run("lb_host_ingress", kind.frame(client, frontend), ifindex=ifindex)
    reply = kind.frame(backend, client, "SA")
    result = datapath.run("lb_host_egress", reply, ifindex=ifindex)
    assert_same(result.packet, changed(reply, source=frontend))


@pytest.mark.parametrize("port", [1, 255, 256, 32768, 65535])
def test_ports_of_any_value_are_in_the_filter(datapath: Datapath, kind: Kind, port: int):
    backend = End(kind.net.remote, port)
    frontend = cluster_ip(datapath, kind, [datapath.backend(backend, kind.proto)])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    reply = kind.frame(backend, pod(kind), "SA")
    assert_same(datapath.run("lb_pod_egress", reply).packet, changed(reply, source=frontend))


def test_other_traffic_is_not_in_the_filter(datapath: Datapath, kind: Kind):
    packet = kind.frame(pod(kind), End(kind.net.client, 80))
    assert_untouched(datapath, "lb_pod_ingress", packet)
    for name in FILTERS:
        assert not any(any(chunk.values) for chunk in datapath.maps[name].chunks())


def test_the_wildcard_of_a_node_port_is_no_address_of_packets(datapath: Datapath, kind: Kind):
    _, index = remote_backend(datapath, kind)
    wildcard = WILDCARD[kind.net]
    datapath.address(
        {"0.0.0.0": "10.96.0.0", "::": "fd00:96::"}[wildcard], AddrFlag.LB_ADDR_CLUSTER_IP
    )
    port = node_port(datapath, kind, [index]).port
    assert_untouched(datapath, "lb_pod_ingress", kind.frame(pod(kind), End(wildcard, port)))


def test_a_backend_of_outside_traffic_is_looked_at_only_where_that_is_reversed(
    datapath: Datapath, node: Node, kind: Kind
):
    node_addresses(datapath, node)
    _, index = local_backend(datapath, kind)
    client, frontend = End(kind.net.client, CLIENT_PORT), node_port(datapath, kind, [index])
    ifindex = node.uplink.ifindex
    datapath.run("lb_host_ingress", kind.frame(client, frontend), ifindex=ifindex)
    ends = [each for each in datapath.maps["lb_reply_filter"].items() if any(each[1])]
    ((_, hooks),) = ends
    assert [hook for hook, is_set in enumerate(hooks) if is_set] == [Hook.LB_HOOK_HOST_EGRESS]
