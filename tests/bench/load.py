# SPDX-License-Identifier: Apache-2.0
"""The load program (load/): built when it must be, then served and asked from members of a lab.

Server and client are pinned to one and the same core, and with them all packet work: the rate is
then the inverse of what a connection costs altogether, wherever in the kernel that is spent. On two
cores the slower end would decide, and hide what the other one loses. Both go before whatever else
wants that core.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from ebpflb.lab import Member
from ebpflb.lab.namespaces import write_sysctls
from tests.bench.options import BenchError

PORT = 7000
# Connections at a time: enough that neither end waits for the other.
PARALLEL = 128
STREAMS = 4

_SOURCES = Path(__file__).with_name("load")
_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
_CORE = max(os.sched_getaffinity(0))
# Reno is in every kernel and sends what it can. No TIME_WAIT: millions of them would be left.
_SYSCTLS = {"ipv4/tcp_congestion_control": "reno", "ipv4/tcp_max_tw_buckets": "0"}


class Server(StrEnum):
    """What a server does."""

    ANSWER = "answer"
    SINK = "sink"
    SOURCE = "source"


class Client(StrEnum):
    """What a client does."""

    ASK = "ask"
    PUSH = "push"
    PULL = "pull"

    @property
    def server(self) -> Server:
        """Whom it needs."""
        return {"ask": Server.ANSWER, "push": Server.SINK, "pull": Server.SOURCE}[self.value]


@dataclass(frozen=True, slots=True)
class Load:
    """What one client counted."""

    seconds: float
    connections: int
    bytes: int
    p50_us: int
    p99_us: int
    errors: dict[str, int]

    @property
    def connect_rate(self) -> float:
        """Connections per second."""
        return self.connections / self.seconds

    @property
    def throughput(self) -> float:
        """Megabytes per second."""
        return self.bytes / self.seconds / 1e6


@cache
def program() -> Path:
    """The path of the compiled program, in a cache outside the checkout."""
    sources = sorted(_SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
    path = _cache() / f"load-{digest[:16]}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        files = [str(source) for source in sources if source.suffix == ".c"]
        subprocess.run(["cc", *_FLAGS, "-o", str(unfinished), *files], check=True)
        unfinished.rename(path)
    return path


def prepare(*members: Member) -> None:
    """Set what TCP must do alike everywhere; before a member has sockets."""
    for member in members:
        with member.entered():
            write_sysctls(_SYSCTLS)


@contextmanager
def serving(member: Member, role: Server) -> Iterator[None]:
    """Run a server at PORT."""
    argv = [*_pinned(), role, "0.0.0.0", str(PORT)]
    with member.popen(argv, stdout=subprocess.PIPE) as server:
        try:
            if server.stdout is None or server.stdout.readline() != "ready\n":
                raise BenchError(f"{member.name}: the load program does not serve")
            yield
        finally:
            server.kill()


def run(member: Member, role: Client, address: str, port: int, seconds: float) -> Load:
    """Run a client to its end. BenchError when one connection failed."""
    count = PARALLEL if role is Client.ASK else STREAMS
    argv = [*_pinned(), role, address, str(port), str(seconds), str(count)]
    done = member.exec(argv, timeout=seconds + 30)
    load = Load(**json.loads(done.stdout))
    if load.errors or not load.connections + load.bytes:
        way = f"{member.name} to {address} port {port}"
        raise BenchError(f"{way}: {load.errors or 'nothing came through'}")
    return load


def _pinned() -> tuple[str, ...]:
    return ("nice", "-n", "-20", "taskset", "-c", str(_CORE), str(program()))


def _cache() -> Path:
    top = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(top) / "ebpflb-bench"
