# SPDX-License-Identifier: Apache-2.0
"""XDP programs of any origin, run a million times over the same packet.

The relay restores the frame and tail-calls the program, also where that makes the frame longer: the
kernel does neither between two runs. The relay's own time is measured too, and subtracted.
Everything is in the processor's caches, and no driver takes part.
"""

from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.load.source_text import source_text
from ebpflb.model.address import Protocol
from tests.bench.harness.options import BenchError
from tests.bpf.harness.datapath import XdpAction
from tests.bpf.harness.loading import ALONE, Loaded, load
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.programs import ProgRun, prog_test_run

SIZE = 80
_TEXT = Path(__file__).parent / "relay.c"
_MAC = 6
_SYN_ACK = 0x12
_ON, _NOTHING, _REFLECT, _GROW = range(4)
SENT = {XdpAction.TX, XdpAction.REDIRECT}


class Relay:
    """One for programs with XDP_HAS_FRAGS and one for those without: the kernel does not mix them.

    reflect: a program that swaps the addresses of link and network, and sends the frame back.
    """

    def __init__(self, directory: Path, *, has_frags: bool) -> None:
        """Compile and load, below an empty directory."""
        self._on = _tool(directory, _ON, has_frags=has_frags)
        tools = {what: _tool(directory, what, has_frags=has_frags) for what in range(1, 4)}
        self._tools = {what: each.programs["lb_xdp"] for what, each in tools.items()}
        self.reflect = self._tools[_REFLECT]

    def place(self, frame: bytes, *, clients: int = 1, ports: int = 1) -> None:
        """The frame of all later runs.

        `clients`, `ports`: each run uses the next source address and destination port of that many,
        and then the first again.
        """
        words = (clients, 0, ports, 0, *_places(frame))
        self._on.maps["lb_relay"].update(u32(0), padded(frame) + b"".join(map(u32, words)))

    def time(self, program: int, runs: int, ifindex: int) -> float:
        """Nanoseconds per run, rounded, including the relay. BenchError if the last packet was not
        sent.
        """
        self._go_on_to(program)
        done = self._run(runs, ifindex)
        if done.retval not in SENT:
            raise BenchError(f"a packet was not sent: {done.retval}")
        return done.duration

    def check(self, program: int, runs: int, ifindex: int) -> None:
        """Check each of that many packets. BenchError unless 999 of 1,000 are sent.

        ebpflb leaves one a second for each next hop to the stack, and one of 65,535 whose checksum
        looks like that of an offloaded packet.
        """
        self._go_on_to(program)
        sent = sum(self._run(1, ifindex).retval in SENT for _ in range(runs))
        if sent < 0.999 * runs:
            raise BenchError(f"of {runs} packets {sent} were sent")

    def overhead(self, runs: int, ifindex: int) -> float:
        """The relay's share of it where the frame keeps its length."""
        self._go_on_to(self._tools[_NOTHING])
        return self._run(runs, ifindex).duration

    def growth(self, runs: int, ifindex: int) -> float:
        """The same with a program that only makes the frame longer.

        Half of the additional time is the relay's, which shortens the frame again.
        """
        self._go_on_to(self._tools[_GROW])
        return self._run(runs, ifindex).duration

    def _go_on_to(self, program: int) -> None:
        self._on.maps["lb_relay_next"].update(u32(0), u32(program))

    def _run(self, runs: int, ifindex: int) -> ProgRun:
        return run(self._on.programs["lb_xdp"], bytes(SIZE), ifindex, repeat=runs)


def _tool(directory: Path, what: int, *, has_frags: bool) -> Loaded:
    place = directory / f"relay-{what}-{has_frags}"
    place.mkdir()
    text, flags = source_text((str(_TEXT),)), (*ALONE, f"-DRELAY={what}")
    defines = {} if has_frags else {"LB_HAS_XDP_FRAGS": "0"}
    return load(place, text, ("lb_xdp",), flags, defines=defines)


def padded(frame: bytes) -> bytes:
    """A frame of SIZE bytes: zeros follow its packet, as on short frames of Ethernet."""
    return frame.ljust(SIZE, b"\0")[:SIZE]


def run(program: int, frame: bytes, ifindex: int, repeat: int = 1) -> ProgRun:
    """Run an XDP program over a frame that came by a device."""
    context = bytes(4) + u32(len(frame)) + bytes(4) + u32(ifindex) + bytes(8)
    return prog_test_run(program, frame, ctx=context, repeat=repeat)


class _Places(NamedTuple):
    """Where in a frame the last word of the source address is, the destination port, the checksum
    of TCP or UDP.
    """

    source: int
    target: int
    csum: int


def _places(frame: bytes) -> _Places:
    source, ports, protocol = (26, 34, 23) if _is_ipv4(frame) else (34, 54, 20)
    return _Places(source, ports + 2, ports + (16 if frame[protocol] == Protocol.TCP else 6))


def numbered(frame: bytes, client: int, port: int) -> bytes:
    """A frame as the relay changes it: these numbers added to source address and destination
    port.
    """
    changed, places = bytearray(frame), _places(frame)
    csum = ~_word(frame, places.csum, 2) & 0xFFFF
    for at, size, more in ((places.source, 4, client), (places.target, 2, port)):
        before = _word(frame, at, size)
        changed[at : at + size] = (before + more).to_bytes(size, "big")
        csum += _sum(before + more) - _sum(before)
    changed[places.csum : places.csum + 2] = (0xFFFF - csum % 0xFFFF).to_bytes(2, "big")
    return bytes(changed)


def answer(sent: bytes) -> bytes:
    """The receiver's first reply to a frame. Its checksum is not valid."""
    frame = bytearray(sent)
    is_ipv4 = _is_ipv4(sent)
    source, size, ports = (26, 4, 34) if is_ipv4 else (22, 16, 54)
    _swap(frame, 0, _MAC)
    _swap(frame, source, size)
    _swap(frame, ports, 2)
    if frame[23 if is_ipv4 else 20] == Protocol.TCP:
        frame[ports + 13] = _SYN_ACK
    return bytes(frame)


def _word(frame: bytes, at: int, size: int) -> int:
    return int.from_bytes(frame[at : at + size], "big")


def _sum(word: int) -> int:
    return (word >> 16) + (word & 0xFFFF)


def _is_ipv4(frame: bytes) -> bool:
    return frame[12:14] == b"\x08\x00"


def _swap(frame: bytearray, at: int, size: int) -> None:
    first, second = frame[at : at + size], frame[at + size : at + 2 * size]
    frame[at : at + 2 * size] = second + first
