# SPDX-License-Identifier: Apache-2.0
"""rewrite.h and csum.h: an incrementally updated checksum equals a recomputed one."""

from ipaddress import IPv4Address, IPv6Address

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebpflb.model.address import Family
from tests.bpf.harness.datapath import Datapath, Verdict
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import (
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    changed,
    source_of,
)
from tests.bpf.harness.services import cluster_ip, local_backend, node_addresses

PORTS = st.integers(min_value=1, max_value=65535)
# Neither loopback nor multicast: packets from such a source are left to the stack.
IPV4 = st.integers(min_value=1, max_value=(224 << 24) - 1).map(IPv4Address).map(str)
IPV4 = IPV4.filter(lambda address: not address.startswith("127."))
IPV6 = st.integers(min_value=2**96, max_value=(0xFF << 120) - 1).map(IPv6Address).map(str)
# Even and odd lengths, and values that make sums of zero.
PAYLOADS = st.one_of(st.binary(max_size=60), st.sampled_from([b"", b"\0", b"\xff" * 7, bytes(9)]))
MANY = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@MANY
@given(drawn=st.data(), payload=PAYLOADS)
def test_a_new_destination_leaves_the_checksums_right(
    datapath: Datapath, kind: Kind, drawn: st.DataObject, payload: bytes
):
    addresses = IPV4 if kind.net.family is Family.IPV4 else IPV6
    client, backend = (End(drawn.draw(addresses), drawn.draw(PORTS)) for _ in range(2))
    datapath.reset()
    frontend = cluster_ip(datapath, kind, [datapath.backend(backend, kind.proto)])
    request = kind.frame(client, frontend, payload=payload)

    result = datapath.run("lb_pod_ingress", request)

    if client.address != backend.address:
        assert result.verdict is Verdict.PASS
        assert_same(result.packet, changed(request, target=backend))
        reply = kind.frame(backend, client, "SA", payload=payload)
        answered = datapath.run("lb_pod_egress", reply).packet
        assert_same(answered, changed(reply, source=frontend))


@MANY
@given(drawn=st.data(), payload=PAYLOADS)
def test_new_ends_leave_the_checksums_right(
    datapath: Datapath, node: Node, kind: Kind, drawn: st.DataObject, payload: bytes
):
    addresses = IPV4 if kind.net.family is Family.IPV4 else IPV6
    address = drawn.draw(addresses)
    datapath.reset()
    node_addresses(datapath, node)
    itself, index = local_backend(datapath, kind, address)
    client = End(address, drawn.draw(PORTS))
    request = kind.frame(client, cluster_ip(datapath, kind, [index]), payload=payload)

    seen = datapath.run("lb_pod_ingress", request).packet

    turned = (NODE_MAC, SENDER_MAC)
    assert_same(seen, changed(request, source=source_of(seen), target=itself, macs=turned))
