# SPDX-License-Identifier: Apache-2.0
"""A packet of a known flow whose pod is remote: at XDP, at tc, and compared with a program that
only swaps addresses, the minimum for a load balancer.

The kernel runs each program a million times over the same frame, which each run restores; the time
of that is measured too, and subtracted. Everything is in the processor's caches, and no driver
takes part.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from scapy.layers.l2 import Ether
from scapy.packet import Packet

from ebpflb.dataplane.load.source_text import source_text
from ebpflb.model.address import Protocol
from tests.bench.harness.cpu import one_cpu
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row
from tests.bench.harness.rounds import in_turns, span
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction, skb_context
from tests.bpf.harness.loading import ALONE, Loaded, load
from tests.bpf.harness.node import Node, Tap
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import IPV4, IPV6, Kind, source_of
from tests.bpf.harness.programs import ProgRun, prog_test_run
from tests.bpf.harness.services import client, node_addresses, node_port, remote_backend

_TEXT = Path(__file__).parent / "again.c"
_PROGRAMS = ("lb_xdp", "lb_host_ingress")
_WAYS = {"nothing": 0, "reflect": 1, "translate": 2}
_RUNS = 1_000_000
_SIZE = 80
_KINDS = [Kind(net, proto) for net in (IPV4, IPV6) for proto in (Protocol.TCP, Protocol.UDP)]


def run(options: Options) -> Iterator[Row]:
    """A row for each family and protocol."""
    node = Node()
    try:
        with TemporaryDirectory(prefix="ebpflb-bench-") as directory, node.entered(), one_cpu():
            loaded = {name: _load(Path(directory) / name, way) for name, way in _WAYS.items()}
            for kind in _KINDS:
                yield from _rows(loaded, node, kind, options)
    finally:
        node.close()


def _load(directory: Path, way: int) -> Loaded:
    directory.mkdir()
    text = source_text((str(_TEXT),))
    return load(directory, text, _PROGRAMS, (*ALONE, f"-DAGAIN={way}"))


def _rows(loaded: Mapping[str, Loaded], node: Node, kind: Kind, options: Options) -> Iterator[Row]:
    for each in loaded.values():
        _prepare(each, node, kind)
    runs = options.scaled(_RUNS)
    ifindex = node.uplink.ifindex

    def at_xdp(way: str) -> float:
        context = bytes(4) + u32(_SIZE) + bytes(4) + u32(ifindex) + bytes(8)
        program = loaded[way].programs["lb_xdp"]
        done = prog_test_run(program, bytes(_SIZE), ctx=context, repeat=runs)
        # The previous packet went to the stack, to resolve the neighbour.
        if done.retval == XdpAction.PASS:
            done = prog_test_run(program, bytes(_SIZE), ctx=context, repeat=runs)
        return _checked(done, way, XdpAction.REDIRECT)

    def at_tc(way: str) -> float:
        program = loaded[way].programs["lb_host_ingress"]
        done = prog_test_run(program, _blank(kind), ctx=skb_context(ifindex), repeat=runs)
        return _checked(done, way, Verdict.REDIRECT)

    measures = {f"xdp {way}": partial(at_xdp, way) for way in _WAYS}
    measures |= {f"tc {way}": partial(at_tc, way) for way in ("nothing", "translate")}
    measured = in_turns(measures, max(options.rounds // 5, 1))
    ns = {name: span(values).median for name, values in measured.items()}
    reflect = ns["xdp reflect"] - ns["xdp nothing"]
    xdp = ns["xdp translate"] - ns["xdp nothing"]
    tc = ns["tc translate"] - ns["tc nothing"]
    case = f"{kind.proto.name} over {kind.net.family.name}, known flow"
    times = f"{xdp:.0f} ns at XDP, {tc:.0f} at tc, {reflect:.0f} to swap addresses"
    yield Row("xdp", case, times, f"tc takes {tc / xdp:.2f} times as long as XDP")


def _checked(done: ProgRun, way: str, sent: int) -> float:
    if way == "translate" and done.retval != sent:
        raise BenchError(f"the packet was not sent: {done.retval}")
    return done.duration


def _blank(kind: Kind) -> bytes:
    """A frame of the family, whose bytes the program replaces."""
    return bytes(12) + (b"\x08\x00" if kind.net is IPV4 else b"\x86\xdd") + bytes(_SIZE - 14)


def _prepare(loaded: Loaded, node: Node, kind: Kind) -> None:
    """A flow that is known at either hook, and its next packet in the place of the frame."""
    datapath = Datapath(loaded)
    datapath.reset()
    node_addresses(datapath, node)
    datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, xdp=True)
    datapath.device(node.overlay.ifindex, snat4=IPV4.overlay, snat6=IPV6.overlay, xdp=True)
    backend, index = remote_backend(datapath, kind)
    request = client(kind), node_port(datapath, kind, [index])
    masked = source_of(
        Ether(_sent(datapath, loaded, node.uplink, kind.frame(*request, payload=b"")))
    )
    _sent(datapath, loaded, node.overlay, kind.frame(backend, masked, "SA", payload=b""))
    for _ in range(2):
        _sent(datapath, loaded, node.uplink, kind.frame(*request, "A", payload=b""))


def _sent(datapath: Datapath, loaded: Loaded, tap: Tap, frame: Packet) -> bytes:
    """The resulting frame, which is the frame in place from now on."""
    loaded.maps["lb_again"].update(u32(0), bytes(frame).ljust(_SIZE, b"\0")[:_SIZE])
    blank = bytes(12) + bytes(frame)[12:14] + bytes(_SIZE - 14)
    return datapath.run_bytes("lb_host_ingress", blank, ifindex=tap.ifindex)[1]
