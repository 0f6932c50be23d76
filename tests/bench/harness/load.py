# SPDX-License-Identifier: Apache-2.0
"""The load program (load/): built if necessary, then run as server and client in members of a lab.

Server and client are pinned to the same core, and with them all packet processing, and the rate is
per second of processor time that they use: the inverse of the total cost of a connection, wherever
in the kernel it is spent. On two cores the slower end would determine the rate and hide losses of
the other one; and other users of the core would count.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from ebpflb.lab import Member
from ebpflb.lab.namespaces import write_sysctls
from tests.bench.harness.options import BenchError

PORT = 7000
# Concurrent connections: enough that neither end waits for the other.
PARALLEL = 32
STREAMS = 4

# Address and port.
Goal = tuple[str, int]

_SOURCES = Path(__file__).with_name("load")
_FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
_CORE = max(os.sched_getaffinity(0))
# Reno is in every kernel and sends as much as it can. No TIME_WAIT: there would be millions.
_SYSCTLS = {"ipv4/tcp_congestion_control": "reno", "ipv4/tcp_max_tw_buckets": "0"}


class Server(StrEnum):
    """The server's job."""

    ANSWER = "answer"
    SINK = "sink"
    SOURCE = "source"


class Client(StrEnum):
    """The client's job."""

    ASK = "ask"
    PUSH = "push"
    PULL = "pull"

    @property
    def server(self) -> Server:
        """The matching server."""
        return {"ask": Server.ANSWER, "push": Server.SINK, "pull": Server.SOURCE}[self.value]


@dataclass(frozen=True, slots=True)
class Load:
    """The results of one client. `cpu_seconds`: of client, server and deferred packet
    processing.
    """

    seconds: float
    cpu_seconds: float
    connections: int
    bytes: int
    p50_us: int
    p99_us: int
    errors: dict[str, int]

    @property
    def connect_rate(self) -> float:
        """Connections per second of processor time."""
        return self.connections / self.cpu_seconds

    @property
    def throughput(self) -> float:
        """Megabytes per second of processor time."""
        return self.bytes / self.cpu_seconds / 1e6


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
    """Configure TCP identically everywhere; before a member has sockets."""
    for member in members:
        with member.entered():
            write_sysctls(_SYSCTLS)


@contextmanager
def serving(member: Member, role: Server) -> Iterator[int]:
    """Run a server at PORT; its process id."""
    argv = [*_pinned(), role, "0.0.0.0", str(PORT)]
    with member.popen(argv, stdout=subprocess.PIPE) as server:
        try:
            if server.stdout is None or server.stdout.readline() != "ready\n":
                raise BenchError(f"{member.name}: the load program does not serve")
            yield server.pid
        finally:
            server.kill()


def run(
    member: Member,
    role: Client,
    goal: Goal,
    server: int,
    seconds: float,
    *,
    parallel: int = PARALLEL,
) -> Load:
    """Run a client to its end. BenchError when one connection failed.

    `server`: the process id of the server that it reaches. `parallel`: connections at a time.
    """
    address, port = goal
    argv = [*_pinned(), role, address, str(port), str(seconds), str(parallel)]
    others = (server, _deferred())
    before = sum(map(_used_seconds, others))
    load = Load(**json.loads(member.exec(argv, timeout=seconds + 30).stdout))
    if load.errors or not load.connections + load.bytes:
        way = f"{member.name} to {address} port {port}"
        raise BenchError(f"{way}: {load.errors or 'nothing came through'}")
    spent = sum(map(_used_seconds, others)) - before
    return replace(load, cpu_seconds=load.cpu_seconds + spent)


def _used_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@cache
def _deferred() -> int:
    """The kernel thread that does the core's deferred packet processing."""
    for name in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            if name.read_text() == f"ksoftirqd/{_CORE}\n":
                return int(name.parent.name)
    raise BenchError(f"there is no ksoftirqd/{_CORE}: run it outside a container")


def _pinned() -> tuple[str, ...]:
    return ("taskset", "-c", str(_CORE), str(program()))


def _cache() -> Path:
    top = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(top) / "ebpflb-bench"
