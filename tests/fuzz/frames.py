# SPDX-License-Identifier: Apache-2.0
"""Packets from libFuzzer, guided by the branches of the tc programs, which are compiled for this
machine (native/): translated packets are correct, and no access is out of bounds.
"""

import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from scapy.layers.inet import IP, TCP
from scapy.packet import Packet

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.layout.structs import LbDevice
from ebpflb.dataplane.load.source_text import source_text
from ebpflb.model.address import Protocol
from tests.bpf.fuzz.corpus import DSR, HAIRPIN, KINDS, V4, V6, Corpus, routed
from tests.bpf.fuzz.judge import Shot
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, built
from tests.bpf.harness.services import BACKEND_PORT
from tests.fuzz.fuzzer import Round
from tests.fuzz.guided import Program, play_guided, write_words
from tests.fuzz.node import loaded_node

_NATIVE = Path(__file__).with_name("native")
_RUNS = 250_000
# In the order of native/tc.c.
_PROGRAMS = [
    f"lb_{place}_{way}" for place in ("host", "l3", "pod") for way in ("ingress", "egress")
]
_DEVICES = 8
_NAME_BYTES = 32
_MTU = 1400
_SCTP = [Kind(net, Protocol.SCTP) for net in (V4, V6)]
_FLAGS = [
    *("-g", "-O1", "-Wno-unused-function", "-fsanitize=fuzzer,address,undefined"),
    # Headers of packets are deliberately unaligned.
    *("-fno-sanitize=alignment", "-fno-sanitize-recover=undefined"),
]


@contextmanager
def frames() -> Iterator[Round]:
    """A quarter of a million inputs in each round, starting with the packets of tests/bpf/fuzz."""
    with tempfile.TemporaryDirectory() as folder:
        yield partial(play_guided, _built(Path(folder)), Path(folder), limit=f"-runs={_RUNS}")


def _built(folder: Path) -> Program:
    (folder / "program.c").write_text(source_text(("tc.c",)))
    program, includes = folder / "tc", [f"-I{_NATIVE}", f"-I{folder}"]
    subprocess.run(["clang", *_FLAGS, *includes, "-o", program, _NATIVE / "tc.c"], check=True)
    with loaded_node() as (programs, node):
        datapath = Datapath(programs)
        datapath.reset()
        with node.entered(), routed():
            corpus = Corpus(datapath, node)
            for kind in _SCTP:
                corpus._write_services(kind)
            _write_node(folder / "tc.node", datapath.maps, node)
        shots = [[each] for each in corpus.seeds if each.program in _PROGRAMS]
        _write_seeds(folder / "reached", [*shots, *_conversations(corpus, node)], node)
    write_words(folder, _words())
    return Program([str(program)], "tests.fuzz.frames")


def _words() -> Iterator[bytes]:
    """The node's addresses and those next to them."""
    for net in (V4, V6):
        for name in net._fields:
            if name != "family":
                yield ip_address(getattr(net, name)).packed


def _devices(node: Node) -> list[int]:
    found = [each.ifindex for each in (node.uplink, node.overlay, node.tunnel, node.pod)]
    return [*found, *[1] * (_DEVICES - len(found))]


def _write_node(file: Path, maps: MapSet, node: Node) -> None:
    """The time, the devices, and every map that is no ring and not per CPU."""
    with file.open("wb") as out:
        out.write(struct.pack(f"=Q{_DEVICES}I", time.monotonic_ns(), *_devices(node)))
        for name, each in maps.items():
            if MAPS[name].is_per_cpu or not each.key_size:
                continue
            filled = [(key, value) for key, value in each.items() if value.strip(b"\0")]
            if name == "lb_devices":
                filled = [(key, _with_mtu(value)) for key, value in filled]
            sizes = (each.key_size, each.value_size, len(filled))
            out.write(name.encode().ljust(_NAME_BYTES, b"\0") + struct.pack("=3I", *sizes))
            out.writelines(key + value for key, value in filled)


def _with_mtu(device: bytes) -> bytes:
    """Makes segments fit into tunnels."""
    made = LbDevice.from_buffer_copy(device)
    made.mtu = _MTU
    return bytes(made)


def _with_mss(frame: Packet) -> Packet:
    """At an odd offset, which swaps bytes in the checksum."""
    frame[TCP].options, frame[TCP].dataofs = [("NOP", None), ("MSS", 1460)], None
    frame.payload.setfieldval("len" if IP in frame else "plen", None)
    for layer in (IP, TCP):
        if layer in frame:
            del frame[layer].chksum
    return built(frame)


def _conversations(corpus: Corpus, node: Node) -> Iterator[list[Shot]]:
    """Requests with their replies: over SCTP, and through a tunnel."""
    uplink = node.uplink.ifindex
    for kind in (*KINDS, *_SCTP):
        net, client = kind.net, End(kind.net.client, 41000)
        asked = kind.frame(client, End(net.external_ip, HAIRPIN))
        answer = kind.frame(End(net.pod, BACKEND_PORT), client, "SA")
        said = [("lb_host_ingress", asked), ("lb_host_egress", answer)]
        yield [Shot(program, uplink, bytes(frame)) for program, frame in said]
        request = Shot(
            "lb_host_ingress", uplink, bytes(kind.frame(client, End(net.external_ip, DSR)))
        )
        reply = kind.frame(End(net.local, BACKEND_PORT), client, "SA")
        if kind.proto is Protocol.TCP:
            reply = _with_mss(reply)
        wrapped = request._replace(frame=corpus.wrapped(request))
        yield [wrapped, Shot("lb_host_egress", uplink, bytes(reply))]


def _write_seeds(folder: Path, inputs: list[list[Shot]], node: Node) -> None:
    folder.mkdir()
    devices = _devices(node)
    for number, shots in enumerate(inputs):
        with (folder / str(number)).open("wb") as out:
            for each in shots:
                place = _PROGRAMS.index(each.program), devices.index(each.ifindex)
                out.write(struct.pack("<BBH", *place, len(each.frame)) + each.frame)


def main() -> None:
    """Run the input of a file."""
    with tempfile.TemporaryDirectory() as folder:
        command = _built(Path(folder)).command
        sys.exit(subprocess.run([*command, *sys.argv[1:]], check=False).returncode)


if __name__ == "__main__":
    main()
