# SPDX-License-Identifier: Apache-2.0
"""Forged resets end no connection, however long it is silent afterwards; a true one frees it."""

import json
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, flow_key, reverse
from ebpflb.dataplane.layout.structs import LbConntrack, LbSettings
from ebpflb.lab import LabNode, Member
from ebpflb.model.address import Protocol, parse_address
from tests.e2e.harness import inject
from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until

_RESET_AT_ONCE = struct.pack("ii", 1, 0)


@contextmanager
def closed_timeout(node: LabNode, seconds: int) -> Iterator[Callable[[], None]]:
    """What is closed is forgotten after so long; to be set again, as the agent may undo it."""
    settings = pinned_maps(node)["lb_settings"]
    before = settings.lookup(bytes(4))
    assert before
    changed = LbSettings.from_buffer_copy(before)
    changed.tcp_closed_timeout = seconds

    def set_again() -> None:
        settings.update(bytes(4), bytes(changed))

    set_again()
    try:
        yield set_again
    finally:
        settings.update(bytes(4), before)


def flow_of(made: socket.socket) -> bytes:
    """Its key where the client is outside."""
    source, target = (
        (parse_address(end[0]), end[1]) for end in (made.getsockname(), made.getpeername())
    )
    return flow_key(source, target, Protocol.TCP)


def entry_of(node: LabNode, flow: bytes) -> LbConntrack | None:
    maps = pinned_maps(node)
    found = next((value for name in FLOW_TABLES if (value := maps[name].lookup(flow))), None)
    return LbConntrack.from_buffer_copy(found) if found else None


def is_known(node: LabNode, flow: bytes) -> bool:
    return entry_of(node, flow) is not None


def sent_ends(node: LabNode, flow: bytes) -> list[int]:
    """The sequence numbers that the client and the pod come to next."""
    original = entry_of(node, flow)
    assert original
    reply = entry_of(node, reverse(bytes(original.to)))
    assert reply
    return [original.sent_end, reply.sent_end]


def forge(member: Member, version: int, sent_end: int, *ends: tuple[str, int]) -> None:
    """Resets from the first end to the second one, with sequence numbers that nobody accepts."""
    words = [str(version), *(str(word) for end in ends for word in end), str(sent_end)]
    member.exec([sys.executable, "-I", "-S", str(Path(inject.__file__)), *words])


@pytest.mark.parametrize("backend", ["pod-1-1", "pod-2-1"])
def test_forged_resets_end_nothing_and_a_true_one_does(cluster, lab, client, backend):
    pod, node = lab.pod(backend), lab.node("node1")
    spec = cluster.serve(cluster.new(), [pod])
    places = [(address_of(node, version), spec.node_port) for version in cluster.versions]
    with ExitStack() as stack:
        held, reset = (
            [stack.enter_context(connected(client, *place)) for place in places] for _ in range(2)
        )
        for version, place, each in zip(cluster.versions, places, held, strict=True):
            seen = json.loads(exchange(each, b"who"))
            inside = (seen["local_address"], seen["local_port"])
            asked, answered = sent_ends(node, flow_of(each))
            forge(client, version, asked, each.getsockname()[:2], place)
            forge(pod, version, answered, inside, (seen["client_address"], seen["client_port"]))
        assert {exchange(each) for each in reset} == {backend}
        flows = [flow_of(each) for each in reset]
        assert all(is_known(node, flow) for flow in flows)
        with closed_timeout(node, 1) as set_again:
            for each in reset:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
                each.close()

            def are_forgotten() -> bool:
                set_again()
                return not any(is_known(node, flow) for flow in flows)

            wait_until(are_forgotten, "those that were reset are forgotten")
            assert all(is_known(node, flow_of(each)) for each in held)
        assert [exchange(each) for each in held for _ in range(3)] == [backend] * 3 * len(held)
