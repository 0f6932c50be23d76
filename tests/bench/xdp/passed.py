# SPDX-License-Identifier: Apache-2.0
"""A packet that is for no Service, from a pod to a pod on another node, at each hook of tc.

The kernel runs each program over the same frame, which no run changes. Beside it a frame that is
not IP, which every program passes at once: what is left is the early filter.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.dataplane.load.source_text import source_text
from tests.bench.harness.cpu import one_cpu
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row
from tests.bench.harness.rounds import Measure, in_turns, span
from tests.bpf.harness.datapath import Datapath, Verdict, skb_context
from tests.bpf.harness.loading import Loaded, load
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, KINDS, End, Kind
from tests.bpf.harness.programs import prog_test_run
from tests.bpf.harness.services import CLIENT_PORT, node_addresses, node_port, remote_backend

_HOOKS = ("lb_pod_ingress", "lb_host_egress", "lb_host_ingress", "lb_pod_egress")
_RUNS = 1_000_000
_ARP = b"\x08\x06"
_MOST_NS = 15


def run(options: Options) -> Iterator[Row]:
    """A row for each family, protocol and hook."""
    node = Node()
    try:
        with TemporaryDirectory(prefix="ebpflb-bench-") as name, node.entered(), one_cpu():
            loaded = load(Path(name), source_text())
            for kind in KINDS:
                _serve(Datapath(loaded), node, kind)
                for hook in _HOOKS:
                    yield _row(loaded, node, kind, hook, options)
    finally:
        node.close()


def _serve(datapath: Datapath, node: Node, kind: Kind) -> None:
    """A NodePort of another pod: the filters are not empty."""
    datapath.reset()
    node_addresses(datapath, node)
    datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node)
    node_port(datapath, kind, [remote_backend(datapath, kind)[1]])


def _row(loaded: Loaded, node: Node, kind: Kind, hook: str, options: Options) -> Row:
    source, target = End(kind.net.pod, CLIENT_PORT), End(kind.net.remote, CLIENT_PORT)
    frame = bytes(kind.frame(source, target, "A"))
    context = skb_context((node.pod if "pod" in hook else node.uplink).ifindex)

    def measured(given: bytes) -> float:
        program, runs = loaded.programs[hook], options.scaled(_RUNS)
        done = prog_test_run(program, given, ctx=context, repeat=runs)
        if done.retval != Verdict.PASS or done.packet != given:
            raise BenchError(f"{hook}: the packet did not pass: {done.retval}")
        return done.duration

    measures: dict[str, Measure] = {
        "IP": partial(measured, frame),
        "ARP": partial(measured, frame[:12] + _ARP + frame[14:]),
    }
    found = in_turns(measures, max(options.rounds // 5, 1))
    passed, least = (span(found[name]).median for name in measures)
    case = f"{kind.proto.name} over {kind.net.family.name}, {hook}"
    verdict = "OK" if passed - least <= _MOST_NS else "short"
    times = f"{passed:.0f} ns, {least:.0f} for ARP"
    return Row("passed", case, times, f"{passed - least:.0f} ns", f"<= {_MOST_NS} ns", verdict)
