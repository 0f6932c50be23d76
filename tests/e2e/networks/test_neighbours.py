# SPDX-License-Identifier: Apache-2.0
"""A next hop that returns with another MAC address and does not announce it."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ebpflb.lab import Member
from ebpflb.lab.namespaces import write_sysctls
from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.questions import PROTOCOLS
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until

NEW_MAC = "0e:eb:f1:b0:ff:02"
POD = "pod-2-1"
# How long a neighbour is trusted; then it is probed at once, and resolved again soon.
SOON = {"base_reachable_time_ms": "200", "delay_first_probe_time": "0", "retrans_time_ms": "50"}


@contextmanager
def searched_soon(node: Member) -> Iterator[None]:
    """The node soon notices when a neighbour does not answer."""
    wanted = {f"ipv{ip}/neigh/eth0/{name}": SOON[name] for ip in (4, 6) for name in SOON}
    with node.entered():
        before = {name: Path("/proc/sys/net", name).read_text() for name in wanted}
        write_sysctls(wanted)
    # Existing entries would keep their previous timeout.
    node.exec(["ip", "neigh", "flush", "all"])
    try:
        yield
    finally:
        with node.entered():
            write_sysctls(before)


@pytest.fixture
def next_hop(lab) -> Iterator[Member]:
    """node2. It gets its own MAC address back."""
    next_hop = lab.node("node2")
    (link,) = json.loads(next_hop.exec(["ip", "-json", "link", "show", "eth0"]).stdout)
    yield next_hop
    set_mac(next_hop, link["address"])
    for member in (lab.node("node1"), lab.client, lab.underlay):
        member.exec(["ip", "neigh", "flush", "all"])


def set_mac(member: Member, address: str) -> None:
    member.exec(["ip", "link", "set", "eth0", "address", address])


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_a_masqueraded_flow_finds_the_next_hop_again(cluster, lab, next_hop, version, protocol):
    spec = cluster.serve(cluster.new(), [lab.pod(POD)])
    node = address_of(lab.node("node1"), version)
    with connected(lab.client, node, spec.node_port, protocol) as flow:
        assert exchange(flow) == POD
        flow.settimeout(0.2)
        with searched_soon(lab.node("node1")):
            wait_until(lambda: is_answered(flow), "the next hop is known again")
            set_mac(next_hop, NEW_MAC)
            wait_until(lambda: is_answered(flow), "the flow goes on")


def is_answered(flow: socket.socket) -> bool:
    """Whether the pod replies to a line now, or with TCP after a retransmission."""
    try:
        return exchange(flow).splitlines()[-1] == POD
    except TimeoutError:
        return False
