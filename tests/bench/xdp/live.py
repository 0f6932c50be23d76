# SPDX-License-Identifier: Apache-2.0
"""Packets of a known flow whose pod is remote, per second of one CPU: XDP compared with tc.

The kernel is its own packet generator (BPF_F_TEST_XDP_LIVE_FRAMES): frames without an skb enter a
veth with native XDP, as they enter a network card, and are dropped and counted where they come out
again. The generator, the program and the receiver share one CPU; the time of a run that drops
frames on arrival is subtracted. Through tc, the kernel makes an skb of each.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from socket import if_nametoindex
from tempfile import TemporaryDirectory

from scapy.packet import Packet

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.kernel.uapi import AttachType, XdpFlag
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.load.source_text import source_text
from ebpflb.lab.offloads import receive_by_napi
from ebpflb.model.address import Protocol
from tests.bench.harness.cpu import one_cpu
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row
from tests.bench.harness.rounds import in_turns, span
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import ALONE, Loaded, load
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import number, u32
from tests.bpf.harness.packets import IPV4, IPV6, NODE_MAC, SENDER_MAC, Kind, source_of
from tests.bpf.harness.programs import send_live_frames
from tests.bpf.harness.services import client, node_port, remote_backend

_TEXT = Path(__file__).parent / "live.c"
_SEND, _COUNT, _REFLECT, _FLOOD = range(4)
_SIZE = 80
_FRAMES = 1_000_000
_KINDS = [Kind(net, proto) for net in (IPV4, IPV6) for proto in (Protocol.TCP, Protocol.UDP)]
_DEVICES = f"""
link add up0 address {NODE_MAC} type veth peer name out0 address {SENDER_MAC}
link set up0 up
link set out0 up
addr add 192.0.2.77/32 dev up0
route add 10.2.0.7/32 dev up0
route add 198.51.100.9/32 dev up0
neigh add 10.2.0.7 lladdr {SENDER_MAC} nud permanent dev up0
neigh add 198.51.100.9 lladdr {SENDER_MAC} nud permanent dev up0
route add fd00:2::7/128 dev up0
route add 2001:db8:100::9/128 dev up0
neigh add fd00:2::7 lladdr {SENDER_MAC} nud permanent dev up0
neigh add 2001:db8:100::9 lladdr {SENDER_MAC} nud permanent dev up0
"""


def run(options: Options) -> Iterator[Row]:
    """A row for each family and protocol."""
    node = Node()
    try:
        with TemporaryDirectory(prefix="ebpflb-bench-") as directory, node.entered(), one_cpu():
            subprocess.run(["ip", "-batch", "-"], input=_DEVICES, text=True, check=True)
            receive_by_napi("up0")
            wire = _Wire(Path(directory))
            for kind in _KINDS:
                yield _row(wire, kind, options)
                yield _flood_row(wire, kind, options)
    finally:
        node.close()


class _Wire:
    """Two ends: frames are made at `out0`, and dropped there when they come back."""

    def __init__(self, directory: Path) -> None:
        (directory / "ours").mkdir()
        self._ours = load(directory / "ours", source_text())
        places = {what: directory / str(what) for what in (_SEND, _COUNT, _REFLECT, _FLOOD)}
        self._tools = {what: self._tool(place, what) for what, place in places.items()}
        self.ways: Mapping[str, Callable[[ExitStack], None]] = {
            "drop": partial(self._attach, self._tools[_COUNT].programs["lb_xdp"]),
            "reflect": partial(self._attach, self._tools[_REFLECT].programs["lb_xdp"]),
            "xdp": partial(self._attach, self._ours.programs["lb_xdp"]),
            "tc": self._attach_tc,
        }

    def _tool(self, directory: Path, what: int) -> Loaded:
        text = source_text((str(_TEXT),))
        directory.mkdir()
        return load(directory, text, ("lb_xdp",), (*ALONE, f"-DLIVE={what}"))

    def prepare(self, kind: Kind) -> None:
        """A known flow, whose next packet is what is sent."""
        datapath, ifindex = Datapath(self._ours), if_nametoindex("up0")
        datapath.reset()
        datapath.address(kind.net.node, AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT)
        datapath.device(ifindex, snat4=IPV4.node, snat6=IPV6.node, xdp=True)
        backend, index = remote_backend(datapath, kind)
        request = client(kind), node_port(datapath, kind, [index])
        sent = datapath.run("lb_host_ingress", kind.frame(*request), ifindex=ifindex)
        reply = kind.frame(backend, source_of(sent.packet), "SA")
        datapath.run("lb_host_ingress", reply, ifindex=ifindex)
        frame = kind.frame(*request, "A", payload=b"")
        datapath.run("lb_host_ingress", frame, ifindex=ifindex)
        self._offer(_SEND, frame)
        self._offer(_FLOOD, kind.frame(*request, payload=b""))

    def _offer(self, sender: int, frame: Packet) -> None:
        value = bytes(frame).ljust(_SIZE, b"\0") + u32(if_nametoindex("out0"))
        self._tools[sender].maps["lb_live"].update(u32(0), value)

    def rate(self, way: str, frames: int, sender: int) -> float:
        """Frames that came back, or were dropped on arrival, per second."""
        counter = self._tools[_COUNT].maps["lb_live_count"]
        with ExitStack() as stack:
            self.ways[way](stack)
            if way != "drop":
                self._attach(self._tools[_COUNT].programs["lb_xdp"], stack, "out0")
            before, began = _total(counter), time.monotonic()
            send_live_frames(self._tools[sender].programs["lb_xdp"], bytes(_SIZE), frames)
            taken = time.monotonic() - began
            counted = _total(counter) - before
        if counted < frames / 2:
            raise BenchError(f"{way}: of {frames} frames {counted} came back")
        return counted / taken

    def _attach(self, program: int, stack: ExitStack, device: str = "up0") -> None:
        ifindex = if_nametoindex(device)
        link = libbpf.link_create(program, ifindex, AttachType.XDP, XdpFlag.NATIVE)
        stack.callback(os.close, link)

    def _attach_tc(self, stack: ExitStack) -> None:
        program = self._ours.programs["lb_host_ingress"]
        link = libbpf.link_create(program, if_nametoindex("up0"), AttachType.TCX_INGRESS)
        stack.callback(os.close, link)


def _total(counter: BpfMap) -> int:
    value = counter.lookup(u32(0)) or b""
    return sum(number(value[at : at + 8]) for at in range(0, len(value), 8))


def _rates(wire: _Wire, ways: Iterable[str], sender: int, options: Options) -> Mapping[str, float]:
    """The median rate of each way, in turns."""
    frames = options.scaled(_FRAMES)
    measures = {way: partial(wire.rate, way, frames, sender) for way in ways}
    return {way: span(each).median for way, each in in_turns(measures, options.rounds).items()}


def _row(wire: _Wire, kind: Kind, options: Options) -> Row:
    wire.prepare(kind)
    rates = _rates(wire, wire.ways, _SEND, options)
    ns = {way: 1e9 / rate for way, rate in rates.items()}
    case = f"{kind.proto.name} over {kind.net.family.name}, known flow"
    millions = ", ".join(f"{way} {rate / 1e6:.2f}" for way, rate in rates.items())
    gain = (ns["tc"] - ns["drop"]) / (ns["xdp"] - ns["drop"])
    limit = (ns["xdp"] - ns["drop"]) / (ns["reflect"] - ns["drop"])
    result = f"tc takes {gain:.2f} times as long as XDP, XDP {limit:.2f} times as a reflector"
    return Row("live", case, f"million frames/s: {millions}", result)


def _flood_row(wire: _Wire, kind: Kind, options: Options) -> Row:
    """First packets, each from another client, with tables that are full of such flows."""
    wire.prepare(kind)
    wire.rate("xdp", options.scaled(_FRAMES), _FLOOD)
    rates = _rates(wire, ("drop", "xdp", "tc"), _FLOOD, options)
    ns = {way: 1e9 / rate - 1e9 / rates["drop"] for way, rate in rates.items()}
    case = f"{kind.proto.name} over {kind.net.family.name}, a flood of first packets"
    result = f"XDP {1e3 / ns['xdp']:.2f}, tc {1e3 / ns['tc']:.2f} million/s of one CPU"
    return Row("live", case, f"each {ns['xdp']:.0f} ns at XDP, {ns['tc']:.0f} ns at tc", result)
