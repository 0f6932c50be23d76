# SPDX-License-Identifier: Apache-2.0
"""Clients of a Service port with session affinity, and the affinity entries kept for them."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

from ebpflb.dataplane.layout.enums import IfEmptyCode
from ebpflb.dataplane.layout.structs import LbAffinity, LbClientKey, LbDesc, LbRange
from ebpflb.model.address import parse_address
from ebpflb.model.plan import Backend
from tests.bpf.harness.datapath import SERVICE, Datapath, addr, frontend_key
from tests.bpf.harness.numbers import number, u32
from tests.bpf.harness.packets import End, Kind, target_of
from tests.bpf.harness.services import cluster_ip

TIMEOUT = 1000
BACKENDS = 50
_SECOND = 10**9
_FIRST_PORT = 8000
_FIRST_SLOT = 200


class Sessions:
    """A ClusterIP with many backends; the client is a pod unless another one is given."""

    def __init__(self, datapath: Datapath, kind: Kind) -> None:
        self.datapath, self.kind = datapath, kind
        self._ports, self._slots = itertools.count(10000), itertools.count(_FIRST_SLOT)
        self.backends = [
            datapath.backend(End(kind.net.remote, _FIRST_PORT + i), kind.proto)
            for i in range(BACKENDS)
        ]
        self.frontend = cluster_ip(datapath, kind, self.backends)
        self.change(self.frontend)

    def change(self, frontend: End, **fields: Any) -> None:
        """Give a frontend affinity with TIMEOUT, and set `fields` of its descriptor."""
        maps = self.datapath.maps
        index = maps["lb_frontends"].lookup(bytes(frontend_key(frontend, self.kind.proto))) or b""
        place = u32(number(maps["lb_current"].lookup(index) or b""))
        desc = LbDesc.from_buffer_copy(maps["lb_descs"].lookup(place) or b"")
        for name, value in ({"affinity_timeout": TIMEOUT} | fields).items():
            setattr(desc, name, value)
        maps["lb_descs"].update(place, bytes(desc))

    def range_of(self, backends: Sequence[int], table: Sequence[int] = ()) -> LbRange:
        """A fresh range, and its lookup table."""
        slots = [next(self._slots) for _ in (*backends, *table)]
        for slot, backend in zip(slots, (*backends, *table), strict=True):
            self.datapath.maps["lb_slots"].update(u32(slot), u32(backend))
        base = slots[0] if slots else 0
        return LbRange(base, len(backends), IfEmptyCode.LB_EMPTY_REFUSE, len(table))

    def planned(self, backend: int) -> Backend:
        """A backend as in the model."""
        end = self.kind.net.remote, _FIRST_PORT + self.backends.index(backend)
        return Backend(parse_address(end[0]), end[1], local=False, terminating=False)

    def serve(self, backends: Sequence[int]) -> None:
        """Have the ClusterIP offer only these backends."""
        found = self.range_of(backends)
        self.change(self.frontend, local=found, others=found)

    def source(self, client: str = "") -> End:
        """A port that the client has not used yet."""
        return End(client or self.kind.net.pod, next(self._ports))

    def ask(self, frontend: End | None = None, client: str = "") -> int:
        """Begin a flow on this node; returns the index of its backend."""
        frame = self.kind.frame(self.source(client), frontend or self.frontend)
        return self.chosen(self.datapath.run("lb_pod_ingress", frame).packet)

    def chosen(self, packet: Any) -> int:
        """The index of the backend that the packet is sent to."""
        return self.backends[target_of(packet).port - _FIRST_PORT]

    def entry(self, service: int = SERVICE, client: str = "") -> LbAffinity | None:
        """The affinity entry of a client."""
        value = self.datapath.maps["lb_affinity"].lookup(self._key(service, client))
        return LbAffinity.from_buffer_copy(value) if value else None

    def age(self) -> float:
        """Seconds since the pod's last new flow."""
        entry = self.entry()
        assert entry
        return (_now() - int(entry.last_used)) / _SECOND

    def keep(self, backend: int, *, age: float = 0, serial: int = 1) -> None:
        """Set the pod's affinity entry: its last flow went to this backend, `age` seconds ago."""
        value = LbAffinity(backend, serial, _now() - int(age * _SECOND))
        self.datapath.maps["lb_affinity"].update(self._key(SERVICE, ""), bytes(value))

    def _key(self, service: int, client: str) -> bytes:
        return bytes(LbClientKey(service, addr(client or self.kind.net.pod)))


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
