# SPDX-License-Identifier: Apache-2.0
"""ebpflb's program at XDP, with its maps filled for NodePorts whose pods are remote."""

from collections.abc import Sequence
from pathlib import Path

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES
from ebpflb.dataplane.layout.capacity import Sizes
from ebpflb.dataplane.layout.enums import FrontendTypeCode
from ebpflb.dataplane.load.source_text import source_text
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.plan import Frontend
from ebpflb.model.service import ServiceName
from tests.bench.harness.options import BenchError
from tests.bench.xdp import relay
from tests.bpf.harness.datapath import Datapath, XdpAction
from tests.bpf.harness.loading import load
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind
from tests.bpf.harness.services import WILDCARD, node_addresses


class Ours:
    """A `peers.Balancer`."""

    has_frags = True
    is_growing = False

    def __init__(self, directory: Path, node: Node, sizes: Sizes | None = None) -> None:
        """Compile and load, in an empty directory."""
        directory.mkdir()
        loaded = load(directory, source_text(), defines=(sizes or Sizes()).defines())
        self.program = loaded.programs["lb_xdp"]
        self.datapath = Datapath(loaded)
        self._node = node

    def prepare(self, kind: Kind, frontend: End, backend: End) -> None:
        """Serve a frontend, and delete all flows."""
        self._clear()
        index = self.datapath.backend(backend, kind.proto)
        self.datapath.frontend(
            End(WILDCARD[kind.net], frontend.port),
            kind.proto,
            local=[index],
            others=[index],
            kind=FrontendTypeCode.LB_NODE_PORT,
        )

    def serve(self, frontends: Sequence[Frontend]) -> None:
        """Serve these frontends, each of its own Service, and delete all flows. BenchError."""
        self._clear()
        desired = {
            ServiceName(each.service.namespace, each.service.service): [each] for each in frontends
        }
        if refused := Sync(self.datapath.maps).resync(desired):
            raise BenchError(f"{len(refused)} Services did not fit")

    def _clear(self) -> None:
        """No Service; only the node."""
        self.datapath.reset()
        node_addresses(self.datapath, self._node)
        for tap, net in ((self._node.uplink, "node"), (self._node.overlay, "overlay")):
            addresses = (getattr(family, net) for family in (IPV4, IPV6))
            self.datapath.device(tap.ifindex, *addresses, xdp=True)

    def forget(self) -> None:
        """Delete all flows."""
        for name in FLOW_TABLES:
            table = self.datapath.maps[name]
            table.delete_batch([key for key, _ in table.items()])

    def open(self, ifindex: int, request: bytes, later: bytes) -> None:
        """Begin a flow, so that `later` is a packet of a known one. BenchError."""
        sent = self._sent(request, ifindex)
        self._sent(relay.answer(sent), self._node.overlay.ifindex)
        for _ in range(2):
            self._sent(later, ifindex)

    def _sent(self, frame: bytes, ifindex: int) -> bytes:
        action, sent = self.datapath.run_xdp(frame, ifindex=ifindex)
        if action not in (XdpAction.TX, XdpAction.REDIRECT):
            raise BenchError(f"a packet was not forwarded: {self.datapath.xdp_results()}")
        return sent
