# SPDX-License-Identifier: Apache-2.0
"""Programs of two instructions that return a number, and functions to observe their effect."""

import contextlib
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ebpflb.config.cgroup import cgroup_root
from ebpflb.dataplane.attach.links import LoadedProgram
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.uapi import AttachType, ProgType
from ebpflb.dataplane.layout.programs import PROGRAMS
from tests.own import own_name

REFUSE, ALLOW = 0, 1
NEXT, PASS, DROP = -1, 0, 2
XDP_PASS = 2

_CONNECT = """
import socket, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write("0")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
    try:
        client.connect(("127.0.0.1", 9))
    except PermissionError:
        sys.exit(7)
"""


def load(
    returns: int,
    kind: ProgType = ProgType.SCHED_CLS,
    attach_type: AttachType | None = None,
    name: str = "lb_tiny",
    used_map: int | None = None,
) -> LoadedProgram:
    """A program that returns `returns`, and refers to a map (by descriptor) if one is given.

    The caller closes it.
    """
    text = b"" if used_map is None else struct.pack("=BBhiQ", 0x18, 0x11, 0, used_map, 0)
    text += struct.pack("=BBhi", 0xB7, 0, 0, returns) + struct.pack("=BBhi", 0x95, 0, 0, 0)
    fd = libbpf.prog_load(kind, name, text, attach_type or 0)
    return LoadedProgram(name, fd, libbpf.prog_info(fd).id)


def load_connect4(returns: int) -> LoadedProgram:
    """A program for connect() of IPv4 sockets."""
    return load(returns, ProgType.CGROUP_SOCK_ADDR, AttachType.CGROUP_INET4_CONNECT)


def pin_programs(directory: Path, used_map: int | None = None) -> None:
    """Pin one program of each kind; all accept every packet. `used_map`: as for load()."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, spec in PROGRAMS.items():
        returns = NEXT if spec.type == ProgType.SCHED_CLS else ALLOW
        if spec.type == ProgType.XDP:
            returns = XDP_PASS
        program = load(returns, spec.type, spec.attach_type, name, used_map)
        libbpf.obj_pin(program.fd, directory / name)
        program.close()


def link_of(pin: Path) -> tuple[int, int]:
    """The ids of a pinned link and of its program."""
    fd = libbpf.obj_get(pin)
    try:
        found = libbpf.link_info(fd)
        return found.id, found.prog_id
    finally:
        os.close(fd)


def may_connect(cgroup: Path) -> bool:
    """Whether a process in a cgroup may connect()."""
    child = subprocess.run([sys.executable, "-c", _CONNECT, str(cgroup)], check=False)
    assert child.returncode in {0, 7}
    return child.returncode == 0


@contextlib.contextmanager
def own_cgroup(name: str) -> Iterator[Path]:
    """A cgroup v2 directory, whose processes must have ended when the block ends."""
    path = Path(tempfile.mkdtemp(prefix=own_name(f"{name}-"), dir=cgroup_root()))
    try:
        yield path
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.rmdir()
