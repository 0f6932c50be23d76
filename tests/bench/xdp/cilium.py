# SPDX-License-Identifier: Apache-2.0
"""Cilium's XDP program, with its maps filled for one NodePort with one endpoint on another node.

It translates both addresses (SNAT mode) and looks up the route as ebpflb does. The address of this
node is compiled in: `Net.overlay`.
"""

import struct
from ipaddress import ip_address
from pathlib import Path

from tests.bench.harness.options import BenchError
from tests.bench.xdp import relay
from tests.bench.xdp.object_file import ObjectFile
from tests.bpf.harness.datapath import XdpAction
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import IPV4, End, Kind

_BACKEND = 1
_SERVICE = 1
_NODE_PORT, _ROUTABLE = 1 << 1, 1 << 6
_EVERYWHERE, _HERE = 0, 1
_TAIL_CALLS = "2/"
# The default sizes of its agent.
_TCP, _OTHERS, _NAT = 1 << 19, 1 << 18, 1 << 19
_FLOW_TABLES = {
    "cilium_ct4_global": _TCP,
    "cilium_ct6_global": _TCP,
    "cilium_ct_any4_global": _OTHERS,
    "cilium_ct_any6_global": _OTHERS,
    "cilium_snat_v4_external": _NAT,
    "cilium_snat_v6_external": _NAT,
}


class Cilium:
    """A `peers.Balancer`."""

    has_frags = False
    is_growing = False

    def __init__(self, path: Path, node: Node) -> None:
        """Load it. BenchError."""
        loaded = ObjectFile(path, _FLOW_TABLES)
        self.program = loaded.programs["xdp"]
        self._maps = loaded.maps
        self._node = node
        for section, program in loaded.programs.items():
            if section.startswith(_TAIL_CALLS):
                index = int(section.removeprefix(_TAIL_CALLS))
                self._maps["cilium_calls"].update(u32(index), u32(program))

    def prepare(self, kind: Kind, frontend: End, backend: End) -> None:
        """Serve a frontend, and delete all flows."""
        family = "lb4" if kind.net is IPV4 else "lb6"
        services, backends, reverse = (
            self._maps[f"cilium_{family}_{name}"]
            for name in ("services_v2", "backends_v3", "reverse_nat")
        )
        address, port = _packed(frontend), struct.pack("!H", frontend.port)
        flags = _NODE_PORT | _ROUTABLE
        for scope in (_EVERYWHERE, _HERE):
            for slot, value in (
                (0, struct.pack("=IHHBxH", 0, 1, _SERVICE, flags, 0)),
                (1, struct.pack("=IHHBxH", _BACKEND, 0, _SERVICE, flags, 0)),
            ):
                key = address + port + struct.pack("=HBBxx", slot, kind.proto, scope)
                services.update(key, value)
        value = _packed(backend) + struct.pack("!HB", backend.port, kind.proto)
        backends.update(u32(_BACKEND), value.ljust(backends.value_size, b"\0"))
        reverse.update(struct.pack("=H", _SERVICE), address + port)
        self._backend = backend
        self.forget()

    def forget(self) -> None:
        """Delete all flows."""
        for name in _FLOW_TABLES:
            self._maps[name].delete_batch([key for key, _ in self._maps[name].items()])

    def open(self, ifindex: int, request: bytes, later: bytes) -> None:
        """Begin a flow, so that `later` is a packet of a known one. BenchError."""
        sent = self._sent(request, ifindex)
        if ip_address(self._backend.address).packed not in sent[26:54]:
            raise BenchError("Cilium sent a packet elsewhere")
        self._sent(relay.answer(sent), self._node.overlay.ifindex)
        for _ in range(2):
            self._sent(later, ifindex)

    def _sent(self, frame: bytes, ifindex: int) -> bytes:
        done = relay.run(self.program, frame, ifindex)
        if done.retval not in (XdpAction.TX, XdpAction.REDIRECT):
            raise BenchError(f"Cilium did not forward a packet: {done.retval}")
        return done.packet


def _packed(end: End) -> bytes:
    return ip_address(end.address).packed
