# SPDX-License-Identifier: Apache-2.0
"""New flows that XDP passes to tc keep the backend that XDP chose."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from scapy.layers.l2 import Ether

from ebpflb.dataplane.layout.enums import SchedulerCode
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, target_of
from tests.bpf.harness.services import client, local_backend, node_port, remote_backend

pytestmark = pytest.mark.usefixtures("uplinks")

FLOWS = 60


class Uplink:
    """A NodePort with a local and a remote backend, and its clients' packets."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind) -> None:
        self._datapath, self._kind = datapath, kind
        self._ifindex = node.uplink.ifindex
        self.here, here = local_backend(datapath, kind)
        elsewhere = remote_backend(datapath, kind)[1]
        self._frontend = node_port(datapath, kind, [here, elsewhere])

    def chosen(self) -> Iterator[tuple[bool, End]]:
        """For new flows: whether XDP passed them to tc, and their backend."""
        for port in range(2000, 2000 + FLOWS):
            frame = bytes(self._kind.frame(client(self._kind, port), self._frontend))
            action, sent = self._datapath.run_xdp(frame, ifindex=self._ifindex)
            is_passed = action is XdpAction.PASS
            if is_passed:
                _, sent = self._datapath.run_bytes("lb_host_ingress", frame, ifindex=self._ifindex)
            yield is_passed, target_of(Ether(sent))


@pytest.fixture
def uplink(datapath: Datapath, node: Node, kind: Kind) -> Uplink:
    return Uplink(datapath, node, kind)


@pytest.mark.parametrize("scheduler", list(SchedulerCode)[:3])
def test_what_is_passed_on_goes_to_the_backend_here(
    datapath: Datapath, uplink: Uplink, scheduler: SchedulerCode
):
    datapath.schedule_frontends(scheduler)
    chosen = list(uplink.chosen())
    assert len({is_passed for is_passed, _ in chosen}) == 2
    assert all((target == uplink.here) == is_passed for is_passed, target in chosen)


def test_a_flow_takes_one_turn(datapath: Datapath, uplink: Uplink):
    datapath.schedule_frontends(SchedulerCode["LB_SCHEDULER_ROUND_ROBIN"])
    targets = [target for _, target in uplink.chosen()]
    assert all(one != other for one, other in pairwise(targets))


def test_a_choice_that_is_no_longer_possible_is_made_again(
    datapath: Datapath, node: Node, kind: Kind
):
    """The local pod is deleted between the two hooks."""
    _, here = local_backend(datapath, kind)
    frontend = node_port(datapath, kind, [here])
    frame = bytes(kind.frame(client(kind), frontend))
    assert datapath.run_xdp(frame, ifindex=node.uplink.ifindex)[0] is XdpAction.PASS
    backend, elsewhere = remote_backend(datapath, kind)
    datapath.replace_backends(here, elsewhere)
    verdict, sent = datapath.run_bytes("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
    assert (verdict, target_of(Ether(sent))) == (Verdict.REDIRECT, backend)
