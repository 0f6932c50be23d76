# SPDX-License-Identifier: Apache-2.0
"""Packets whose bytes libFuzzer makes, guided by the branches of the programs at tc, which are
compiled for this machine (native/): right ones stay right, and no access is out of bounds.
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

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.load.source_text import source_text
from tests.bpf.fuzz.corpus import V4, V6, Corpus, routed
from tests.bpf.fuzz.judge import Shot
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import Node
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
_FLAGS = [
    *("-g", "-O1", "-Wno-unused-function", "-fsanitize=fuzzer,address,undefined"),
    # Headers of packets are not aligned, on purpose.
    *("-fno-sanitize=alignment", "-fno-sanitize-recover=undefined"),
]


@contextmanager
def frames() -> Iterator[Round]:
    """A quarter of a million inputs in each round, from the packets of tests/bpf/fuzz on."""
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
            _write_node(folder / "tc.node", datapath.maps, node)
        _write_seeds(folder / "reached", corpus.seeds, node)
    write_words(folder, _words())
    return Program([str(program)], "tests.fuzz.frames")


def _words() -> Iterator[bytes]:
    """The node's addresses and those beside it."""
    for net in (V4, V6):
        for name in net._fields:
            if name != "family":
                yield ip_address(getattr(net, name)).packed


def _devices(node: Node) -> list[int]:
    found = [each.ifindex for each in (node.uplink, node.overlay, node.tunnel, node.pod)]
    return [*found, *[1] * (_DEVICES - len(found))]


def _write_node(file: Path, maps: MapSet, node: Node) -> None:
    """The time, the devices, and what is in each map that is no ring and not per CPU."""
    with file.open("wb") as out:
        out.write(struct.pack(f"=Q{_DEVICES}I", time.monotonic_ns(), *_devices(node)))
        for name, each in maps.items():
            if MAPS[name].is_per_cpu or not each.key_size:
                continue
            filled = [(key, value) for key, value in each.items() if value.strip(b"\0")]
            sizes = (each.key_size, each.value_size, len(filled))
            out.write(name.encode().ljust(_NAME_BYTES, b"\0") + struct.pack("=3I", *sizes))
            out.writelines(key + value for key, value in filled)


def _write_seeds(folder: Path, shots: list[Shot], node: Node) -> None:
    folder.mkdir()
    devices = _devices(node)
    for number, shot in enumerate(shots):
        if shot.program in _PROGRAMS:
            place = _PROGRAMS.index(shot.program), devices.index(shot.ifindex)
            head = struct.pack("<BBH", *place, len(shot.frame))
            (folder / str(number)).write_bytes(head + shot.frame)


def main() -> None:
    """Play the input of a file."""
    with tempfile.TemporaryDirectory() as folder:
        command = _built(Path(folder)).command
        sys.exit(subprocess.run([*command, *sys.argv[1:]], check=False).returncode)


if __name__ == "__main__":
    main()
