# SPDX-License-Identifier: Apache-2.0
"""BIG TCP: segments longer than 64 KiB reach pods through NodePorts and ClusterIPs as they are."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from ebpflb.lab import Cni, Member, Stack
from ebpflb.lab.network import UPLINK
from tests.e2e.conftest import network_id
from tests.e2e.harness.big_tcp import big_tcp
from tests.e2e.harness.sockets import connected, echo
from tests.e2e.traffic.test_packets import MEGABYTE, ways

__all__ = ["ways"]

NETWORKS = [(Cni.PTP, Stack.DUAL), (Cni.VXLAN, Stack.DUAL)]
MOST_IN_IP = 65_536
# linux/if_ether.h
ETH_P_ALL = 3


class Longest:
    """The length of the longest frame so far."""

    bytes = 0


@contextmanager
def frames(node: Member) -> Iterator[Longest]:
    """Those that the node receives or sends at its uplink meanwhile."""
    with node.entered():
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        tap.bind((UPLINK, ETH_P_ALL))
    seen, nothing = Longest(), bytearray(1)
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            try:
                seen.bytes = max(seen.bytes, tap.recv_into(nothing, 0, socket.MSG_TRUNC))
            except TimeoutError:
                continue

    tap.settimeout(0.1)
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()
        tap.close()


@pytest.mark.parametrize("network", NETWORKS, indirect=True, ids=network_id)
def test_long_segments_arrive_as_they_were_sent(network, ways):
    # A kernel that forwards them over IPv6 finds them too big once they carry a jumbo option, with
    # ebpflb and without, and TCP repeats them in parts: a megabyte takes a second then.
    body = Random(1).randbytes(MEGABYTE)
    with big_tcp(network.lab):
        for way in ways:
            with (
                frames(network.lab.node("node1")) as longest,
                connected(network.lab.client, way.address, way.port) as bulk,
            ):
                assert echo(bulk, body) == body, way.name
            assert longest.bytes > MOST_IN_IP, way.name
