# SPDX-License-Identifier: Apache-2.0
"""The programs' cost: verifier, size, hash lookups of a flow, and a packet that is not Service
traffic. The target is for the first packet of a flow.

The packet is a TCP acknowledgement between two other hosts, run repeatedly: everything is in the
processor's caches. The kernel cannot test-run socket hooks and devices without Ethernet this way.
"""

import os
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.layout.capacity import Sizes
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.load.source_text import source_text
from tests.bench.harness.generation import generation
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import load
from tests.bpf.harness.lookups import FLOWS, Costs, counting
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, KINDS
from tests.bpf.harness.programs import prog_test_run
from tests.bpf.harness.services import node_addresses

_RUNNABLE = ("lb_host_ingress", "lb_host_egress", "lb_pod_ingress", "lb_pod_egress")
_RUNS = 1_000_000
_MOST_LOOKUPS = 4
# Of IPv6 they are as many.
_KINDS = [kind for kind in KINDS if kind.net is IPV4]
_TIMESTAMPS = bytes.fromhex("0101080a0000000100000001")


def run(options: Options) -> Iterator[Row]:
    """One row for each program, then one for each kind of flow."""
    with generation(Sizes()) as made:
        for name in PROGRAMS:
            yield _row(made.progs / name, options)
    yield from _flows()


def _row(path: Path, options: Options) -> Row:
    fd = libbpf.obj_get(path)
    try:
        facts = libbpf.prog_info(fd)
        cost = ""
        if path.name in _RUNNABLE:
            found = prog_test_run(fd, _acknowledgement(), repeat=options.scaled(_RUNS))
            cost = f"{found.duration} ns a packet of others"
    finally:
        os.close(fd)
    size = f"{facts.xlated_prog_len // 8:,} instructions, {facts.verified_insns:,} verified"
    return Row("programs", path.name, size, cost)


def _acknowledgement() -> bytes:
    source, destination = IPv4Address("192.0.2.1"), IPv4Address("192.0.2.2")
    tcp = struct.pack("!HHIIBBHHH", 40000, 7000, 1, 1, 8 << 4, 0x10, 64, 0, 0) + _TIMESTAMPS
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0x4000, 64, 6, 0)
    return bytes(12) + b"\x08\x00" + ip + source.packed + destination.packed + tcp


def _flows() -> Iterator[Row]:
    node = Node()
    try:
        with TemporaryDirectory(prefix="ebpflb-bench-") as directory, node.entered():
            datapath = Datapath(load(Path(directory), counting(source_text())))
            for kind in _KINDS:
                for name, flow in FLOWS.items():
                    datapath.reset()
                    node_addresses(datapath, node)
                    costs = flow(datapath, node, kind).costs(datapath, kind)
                    yield _lookups(f"{kind.proto.name}, {name}", costs)
    finally:
        node.close()


def _lookups(case: str, costs: Costs) -> Row:
    measured = f"answer {costs.answer}, later {costs.later} hash lookups"
    verdict = "OK" if costs.first <= _MOST_LOOKUPS else "short"
    return Row(
        "programs", case, measured, f"first packet {costs.first}", f"<= {_MOST_LOOKUPS}", verdict
    )
