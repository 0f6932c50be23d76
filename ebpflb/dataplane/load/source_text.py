# SPDX-License-Identifier: Apache-2.0
"""Flatten bpf/ into the one text that bcc compiles.

bcc rewrites map calls only in the text it is given, not in included headers, so every quoted
include is expanded once, with `#line` markers so that errors keep their file and line.
Includes in angle brackets are kernel headers and are left to clang (bpf/uapi).
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import ebpflb
from ebpflb.dataplane.layout.assertions import layout_assertions

PROGRAM_FILES = ("cgroup_sock.c", "sock_ops.c", "tc.c", "xdp.c")
UAPI_INCLUDES = (
    "linux/types.h",
    "linux/errno.h",
    "linux/if_ether.h",
    "linux/in.h",
    "linux/in6.h",
    "linux/ip.h",
    "linux/ipv6.h",
    "linux/tcp.h",
    "linux/udp.h",
    "linux/icmp.h",
    "linux/icmpv6.h",
    "linux/pkt_cls.h",
)

_QUOTED_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"\s*$')


def bpf_directory() -> Path:
    """The directory of the C files: in the installed package, or next to it in a checkout."""
    package = Path(ebpflb.__file__).resolve().parent
    installed = package / "_bpf"
    return installed if installed.is_dir() else package.parent / "bpf"


def source_text(files: tuple[str, ...] = PROGRAM_FILES, directory: Path | None = None) -> str:
    """The whole program: kernel headers, our files, and the layout assertions."""
    directory = directory or bpf_directory()
    seen: set[str] = set()
    lines = [f"#include <{name}>" for name in UAPI_INCLUDES]
    for name in files:
        lines.extend(_expand(directory, name, seen))
    return "\n".join(lines) + '\n#line 1 "structs.py"\n' + layout_assertions()


def source_hash(text: str, defines: Mapping[str, str]) -> bytes:
    """32 bytes that change whenever the result of a compile might."""
    settings = "\n".join(f"{name}={value}" for name, value in sorted(defines.items()))
    return hashlib.sha256(f"{text}\0{settings}".encode()).digest()


def _expand(directory: Path, name: str, seen: set[str]) -> Iterator[str]:
    if name in seen:
        return
    seen.add(name)
    yield f'#line 1 "{name}"'
    for number, line in enumerate((directory / name).read_text().splitlines(), start=1):
        include = _QUOTED_INCLUDE.match(line)
        if include is None:
            yield line
            continue
        yield from _expand(directory, include.group(1), seen)
        yield f'#line {number + 1} "{name}"'
