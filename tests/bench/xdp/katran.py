# SPDX-License-Identifier: Apache-2.0
"""katran's XDP program, with its maps filled for one Service with one endpoint.

It encapsulates a packet (IP in IP) for the endpoint, which replies directly to the client. It looks
up no route: everything goes to one router.
"""

import struct
from ipaddress import ip_address
from pathlib import Path

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import KernelMap
from ebpflb.dataplane.kernel.uapi import MapType
from tests.bench.harness.options import BenchError
from tests.bench.xdp import relay
from tests.bench.xdp.object_file import ObjectFile
from tests.bpf.harness.datapath import XdpAction
from tests.bpf.harness.node import OVERLAY_MAC
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import IPV6, End, Kind

# An index: 0 is no endpoint.
_ENDPOINT = 1
_IS_IPV6 = 1
_ROUTER = 0
# Sizes in bytes of a key and a value of its flow tables, and how many flows one CPU's table holds.
_FLOW, _PLACE, _FLOWS = 40, 16, 1 << 18
# After the counters of frontends: this second's new flows; beyond a limit katran remembers none.
_NEW_FLOWS = 2


class Katran:
    """A `peers.Balancer`."""

    has_frags = False
    is_growing = True

    def __init__(self, path: Path) -> None:
        """Load it. BenchError."""
        loaded = ObjectFile(path)
        self.program = loaded.programs["xdp"]
        self._maps = loaded.maps

    def prepare(self, kind: Kind, frontend: End, backend: End) -> None:
        """Serve a frontend, and delete all flows."""
        mac = bytes.fromhex(OVERLAY_MAC.replace(":", ""))
        self._maps["ctl_array"].update(u32(_ROUTER), mac.ljust(8, b"\0"))
        key = _packed(frontend) + struct.pack("!HBx", frontend.port, kind.proto)
        self._maps["vip_map"].update(key, u32(0) + u32(0))
        flags = _IS_IPV6 if kind.net is IPV6 else 0
        self._maps["reals"].update(u32(_ENDPOINT), _packed(backend) + u32(flags))
        ring = self._maps["ch_rings"].max_entries // self._frontends
        self._maps["ch_rings"].update_batch([(u32(place), u32(_ENDPOINT)) for place in range(ring)])
        self._backend = backend
        self.forget()

    def forget(self) -> None:
        """Delete all flows."""
        flows = KernelMap(libbpf.map_create(MapType.LRU_HASH, "flows", _FLOW, _PLACE, _FLOWS))
        for cpu in range(libbpf.possible_cpus()):
            self._maps["lru_mapping"].update(u32(cpu), u32(flows.fd))
        stats = self._maps["stats"]
        stats.update(u32(self._frontends + _NEW_FLOWS), bytes(stats.value_size))

    @property
    def _frontends(self) -> int:
        return self._maps["stats"].max_entries // 2

    def open(self, ifindex: int, request: bytes, later: bytes) -> None:
        """Begin a flow, so that `later` is a packet of a known one. BenchError."""
        for frame in (request, later):
            done = relay.run(self.program, frame, ifindex)
            address = ip_address(self._backend.address)
            header = 20 if address.version == 4 else 40
            is_whole = done.packet[14 + header :] == frame[14:]
            if done.retval != XdpAction.TX or not is_whole:
                raise BenchError(f"katran did not forward a packet: {done.retval}")
            if address.packed not in done.packet[14 : 14 + header]:
                raise BenchError("katran sent a packet elsewhere")


def _packed(end: End) -> bytes:
    return ip_address(end.address).packed.ljust(16, b"\0")
