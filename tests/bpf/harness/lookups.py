# SPDX-License-Identifier: Apache-2.0
"""Hash lookups per packet of a flow: the programs, with a counter at each lookup in a hash map."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from scapy.packet import Packet

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.capacity import MAPS
from tests.bpf.harness.datapath import Datapath, Result
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32, u64
from tests.bpf.harness.packets import End, Kind, source_of
from tests.bpf.harness.services import (
    client,
    cluster_ip,
    local_backend,
    node_port,
    pod,
    remote_backend,
)

_HASHES = [name for name, spec in MAPS.items() if not spec.is_array]
_LOOK = re.compile(rf"\b(?:{'|'.join(_HASHES)})\.lookup\([^()]*\)")
# No test fills the ring buffer.
_COUNTER = "lb_flow_lost"
_COUNT = f"""
static __always_inline void lb_count_look(void)
{{
	int zero = 0;
	__u64 *count = {_COUNTER}.lookup(&zero);

	if (count)
		*count += 1;
}}
"""


class Costs(NamedTuple):
    """Hash lookups of a flow's first packet, of the reply to it, and of a later one."""

    first: int
    answer: int
    later: int


class Hook(NamedTuple):
    """A program and the device where it sees packets."""

    program: str
    ifindex: int = 1


def counting(text: str) -> str:
    """The text of the programs, with counters added."""
    after = text.index("\n", text.index(f", {_COUNTER}, ")) + 1
    return text[:after] + _COUNT + _LOOK.sub(r"(lb_count_look(), \g<0>)", text[after:])


def looks(maps: MapSet) -> int:
    """Lookups since the last call."""
    counter = maps[_COUNTER]
    value = counter.lookup(u32(0))
    assert value is not None
    counter.update(u32(0), bytes(len(value)))
    size = len(u64(0))
    return sum(int.from_bytes(value[at : at + size], "little") for at in range(0, len(value), size))


def run(datapath: Datapath, hook: Hook, packet: Packet) -> tuple[int, Result]:
    """The lookups of one run of the program, and its result."""
    looks(datapath.maps)
    result = datapath.run(hook.program, packet, ifindex=hook.ifindex)
    return looks(datapath.maps), result


class Flow(NamedTuple):
    """A client that opens a flow to a frontend with one backend."""

    there: Hook
    back: Hook
    ends: tuple[End, End, End]

    def costs(self, datapath: Datapath, kind: Kind) -> Costs:
        """Run the flow's packets on a datapath that counts lookups."""
        source, frontend, backend = self.ends
        first, sent = run(datapath, self.there, kind.frame(source, frontend))
        answer, _ = run(datapath, self.back, kind.frame(backend, source_of(sent.packet), "SA"))
        run(datapath, self.there, kind.frame(source, frontend, "A"))
        later, _ = run(datapath, self.there, kind.frame(source, frontend, "PA"))
        return Costs(first, answer, later)


def _to_cluster_ip(datapath: Datapath, _: Node, kind: Kind) -> Flow:
    backend, index = remote_backend(datapath, kind)
    ends = pod(kind), cluster_ip(datapath, kind, [index]), backend
    return Flow(Hook("lb_pod_ingress"), Hook("lb_pod_egress"), ends)


def _to_pod_here(datapath: Datapath, node: Node, kind: Kind) -> Flow:
    backend, index = local_backend(datapath, kind)
    ends = client(kind), node_port(datapath, kind, [index]), backend
    uplink = node.uplink.ifindex
    return Flow(Hook("lb_host_ingress", uplink), Hook("lb_host_egress", uplink), ends)


def _to_pod_elsewhere(datapath: Datapath, node: Node, kind: Kind) -> Flow:
    backend, index = remote_backend(datapath, kind)
    ends = client(kind), node_port(datapath, kind, [index]), backend
    there, back = node.uplink.ifindex, node.overlay.ifindex
    return Flow(Hook("lb_host_ingress", there), Hook("lb_host_ingress", back), ends)


FLOWS: Mapping[str, Callable[[Datapath, Node, Kind], Flow]] = {
    "pod to ClusterIP": _to_cluster_ip,
    "NodePort to a pod here": _to_pod_here,
    "NodePort to a pod elsewhere": _to_pod_elsewhere,
}
