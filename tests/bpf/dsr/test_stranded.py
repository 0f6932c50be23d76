# SPDX-License-Identifier: Apache-2.0
"""Tunneled connections whose pod no longer exists: the client's next SYN gets another backend."""

import pytest

from tests.bpf.dsr.sent import LASTING, assert_sent
from tests.bpf.dsr.tunnel import arrive, pod_elsewhere, served
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind
from tests.bpf.harness.services import client


class Client:
    """Sends to a Service whose pod is on another node."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind) -> None:
        self._datapath, self._node, self._kind = datapath, node, kind
        datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, mtu=1500)
        self.pod, self._index = pod_elsewhere(datapath, kind)
        self._frontend = served(datapath, kind, self._index)
        for flags in LASTING:
            self.sends(flags, self.pod)

    def sends(self, flags: str, to: End) -> None:
        frame = self._kind.frame(client(self._kind), self._frontend, flags)
        assert_sent(self._kind, arrive(self._datapath, self._node, frame), frame, to)

    def loses_pod(self, *, serving: bool) -> End:
        """Replaces the pod and returns the new one. `serving`: the old one still finishes its
        connections.
        """
        address = End(str(self._kind.net.remote), self.pod.port + 1)
        new = self._datapath.backend(address, self._kind.proto)
        self._datapath.replace_backends(self._index, new, serving=serving)
        return address

    def waits_a_second(self) -> None:
        for key, entry in self._datapath.tunneled().items():
            self._datapath.write_entry(key, last_seen=entry.last_seen - 10**9)


@pytest.fixture
def caller(dsr: Datapath, node: Node, tcp: Kind) -> Client:
    return Client(dsr, node, tcp)


def test_a_repeated_syn_gets_another_pod(caller):
    other = caller.loses_pod(serving=False)
    caller.sends("S", caller.pod)
    caller.waits_a_second()
    caller.sends("S", other)
    caller.sends("A", other)


def test_a_made_up_syn_moves_no_connection_that_goes_on(caller):
    caller.loses_pod(serving=False)
    for _ in range(3):
        caller.sends("S", caller.pod)
        caller.sends("A", caller.pod)
        caller.waits_a_second()


def test_two_syns_at_once_move_none(caller):
    caller.loses_pod(serving=False)
    caller.sends("S", caller.pod)
    caller.sends("S", caller.pod)


def test_a_pod_that_ends_its_connections_keeps_them(caller):
    caller.loses_pod(serving=True)
    for _ in range(3):
        caller.sends("S", caller.pod)
        caller.waits_a_second()
