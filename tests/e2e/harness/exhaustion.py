# SPDX-License-Identifier: Apache-2.0
"""A node that has run out of conntrack entries and source ports, and has no route to a backend."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ebpflb.dataplane.layout.enums import CtState, DropReason
from ebpflb.dataplane.layout.structs import LbAddr, LbConntrack, LbTuple
from ebpflb.dataplane.view.counts import read_drops, sum_drops
from ebpflb.errors import MapError
from ebpflb.lab import LabNode
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.waiting import wait_until

_NOWHERE = "203.0.113.0/24"
# Leaves 2,035 ports for masquerading, and enough for sockets.
_LOCAL_PORTS = "1024 63500"
_DATAGRAMS = 6000
# Repeatedly, because a port that is idle for two seconds may be reallocated.
_BURSTS = """
import socket, sys, time
address, port, count, rounds = sys.argv[1], *map(int, sys.argv[2:])
for _ in range(rounds):
    for _ in range(count):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b".", (address, port))
    time.sleep(0.5)
"""
_ROUNDS = 1_000_000
_CHUNK = 8192
_TCP = 6


def leave_few_ports(node: LabNode) -> None:
    """Have agents started afterwards masquerade with 2,035 source ports."""
    node.exec(["sysctl", "-qw", f"net.ipv4.ip_local_port_range={_LOCAL_PORTS}"])


@contextmanager
def exhausted(cluster: Cluster, node: LabNode) -> Iterator[None]:
    """All three at once, and clients that are affected."""
    lab = cluster.lab
    lost, alone = cluster.new(), cluster.new()
    objects = lab.service(lost, lab.pods[:1])
    for each in (one for item in objects for one in item.get("endpoints", ())):
        version4 = ":" not in each["addresses"][0]
        each["addresses"] = [_NOWHERE.replace("0/24", "9") if version4 else "2001:db8:113::9"]
    cluster.write(lost, objects, wait=False)
    cluster.serve(alone, lab.pods_on("node1")[:1], wait=False)
    node.exec(["ip", "route", "add", "unreachable", _NOWHERE])
    few: dict[str, Any] = {"rate": 10.0, "timeout": 0.3, "workers": 8}
    with ExitStack() as stack:
        stack.callback(node.exec, ["ip", "route", "del", "unreachable", _NOWHERE], check=False)
        bursts = [sys.executable, "-I", "-S", "-c", _BURSTS, node.ipv4, str(alone.node_port)]
        # Until the agent serves it, the datagrams are not accepted and take no port.
        wait_until(
            lambda: lab.client.exec([*bursts, str(_DATAGRAMS), "1"]) and _lacks_ports(node),
            "no source port is left",
        )
        _fill_conntrack(node)
        steady = stack.enter_context(lab.client.popen([*bursts, str(_DATAGRAMS), str(_ROUNDS)]))
        stack.callback(steady.kill)
        for spec, protocol in ((lost, "tcp"), (alone, "udp")):
            place = (node.ipv4, spec.node_port)
            stack.enter_context(lab.client.start_load(*place, protocol=protocol, **few))
        yield


def _lacks_ports(node: LabNode) -> bool:
    return sum_drops(read_drops(pinned_maps(node)))[DropReason.LB_DROP_SNAT_PORTS] > 0


def _fill_conntrack(node: LabNode) -> None:
    """Fill the table as if every flow were in use."""
    table = pinned_maps(node)["lb_conntrack"]
    now = time.monotonic_ns()
    entry = LbConntrack(created=now, last_seen=now, direction=1, state=CtState.LB_CT_ESTABLISHED)
    room = table.max_entries
    for first in range(0, room, _CHUNK):
        keys = (_tuple(number) for number in range(first, min(first + _CHUNK, room)))
        try:
            table.update_batch([(bytes(key), bytes(entry)) for key in keys])
        except MapError:
            return


def _tuple(number: int) -> LbTuple:
    """Of documentation addresses."""
    source = b"\x20\x01\x0d\xb8" + number.to_bytes(12, "big")
    return LbTuple(saddr=LbAddr.from_buffer_copy(source), dport=1, sport=1, proto=_TCP)
