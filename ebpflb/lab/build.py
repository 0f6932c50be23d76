# SPDX-License-Identifier: Apache-2.0
"""Builds the parts of a lab, and removes them.

Everything is recorded in the lab's state before it is made, so removing works wherever building or
an earlier removal stopped.
"""

import contextlib
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

from ebpflb.config.cgroup import cgroup_root
from ebpflb.dataplane.kernel import libc
from ebpflb.errors import ConfigError, EbpflbError, ProbeError
from ebpflb.lab import echo, namespaces, network, processes, state
from ebpflb.lab.layout import LabConfig, Layout, SeatKind
from ebpflb.lab.member import LabNode, Member
from ebpflb.lab.processes import Ownership
from ebpflb.lab.state import LabState

_ATTEMPT_SECONDS = 0.5
_ATTEMPTS_AT_ONCE = 256


class Source(Protocol):
    """Where connections come from: a member of the lab."""

    @property
    def name(self) -> str: ...

    def entered(self) -> AbstractContextManager[None]:
        """Sockets made in the block belong to the source's namespace."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """From a member to an address. pod: who must answer; "" when a refusal is answer enough."""

    source: Source
    address: str
    port: int
    pod: str = ""

    def __str__(self) -> str:
        return f"{self.source.name} to {self.pod or 'a node'} ({self.address} port {self.port})"


def reserve(config: LabConfig, held: contextlib.ExitStack, *, owned: bool) -> LabState:
    """Take a name and a number, and record what will be made. `owned`: by this process.

    `held` gets the lock that keeps others from building or taking down the same lab. ConfigError
    when a lab, a namespace or a cgroup of that name exists.
    """
    with state.locked_root():
        directory = state.directory_of(config.name)
        if (directory / state.FILE).exists():
            raise ConfigError(
                f"lab {config.name!r} exists: choose another name, or run `ebpflb lab down --name "
                f"{config.name}` first"
            )
        state.drop_unmade(config.name)
        directory.mkdir()
        held.enter_context(state.locked(config.name))
        layout = Layout(config, state.free_index())
        made = LabState(
            config=config,
            index=layout.index,
            cgroup=str(Path(cgroup_root()) / processes.TOP / config.name),
            bpffs=str(directory / "bpf"),
            namespaces={layout.namespace(seat): None for seat in layout.seats()},
        )
        for path in [*map(namespaces.path_of, made.namespaces), Path(made.cgroup)]:
            if path.exists():
                directory.rmdir()
                raise ConfigError(
                    f"{path} exists and belongs to no lab: remove it or choose another name"
                )
        if owned:
            state.own(config.name)
        made.save()
        Path(made.cgroup).mkdir(parents=True)
    return made


def make_namespaces(made: LabState, layout: Layout) -> None:
    """All namespaces, and their sysctls before any device is in them."""
    for seat in layout.seats():
        name = layout.namespace(seat)
        made.namespaces[name] = namespaces.create(name)
        with namespaces.entered(namespaces.path_of(name)):
            namespaces.write_sysctls(network.sysctls(seat, layout.config))
    made.save()


def make_network(layout: Layout) -> None:
    """Devices, addresses and routes. ProbeError names the command that failed."""
    for seat in layout.seats():
        name = layout.namespace(seat)
        with namespaces.entered(namespaces.path_of(name)):
            _batch("ip", network.commands(layout, seat), name)
            _batch("bridge", network.forwarding_entries(layout, seat), name)


def make_places(made: LabState, members: Sequence[Member]) -> None:
    """cgroups, the file system for pins, and the directories of manifests and logs."""
    for member in members:
        member.cgroup.mkdir(parents=True, exist_ok=True)
    bpffs = Path(made.bpffs)
    bpffs.mkdir()
    libc.mount_bpffs(bpffs, "ebpflb-lab")
    made.logs.mkdir()
    for member in members:
        if isinstance(member, LabNode):
            member.bpffs.mkdir(mode=0o700)
            member.manifests.mkdir(parents=True)


def start_pods(made: LabState, members: Sequence[Member]) -> None:
    """The echo servers, each in a session of its own, so that they survive this process."""
    for pod in members:
        if pod.kind is SeatKind.POD:
            made.processes[pod.name] = _start_pod(pod, made)
    made.save()


def wait_reachable(attempts: Sequence[Attempt], timeout: float) -> None:
    """Try all attempts until each has worked once. ProbeError names one that did not in time."""
    deadline = time.monotonic() + timeout
    left = list(attempts)
    while left:
        failed: list[tuple[Attempt, str]] = []
        for first in range(0, len(left), _ATTEMPTS_AT_ONCE):
            failed += _try(left[first : first + _ATTEMPTS_AT_ONCE])
        if failed and time.monotonic() > deadline:
            attempt, reason = failed[0]
            raise ProbeError(f"{len(failed)} of {len(attempts)} paths fail; {attempt}: {reason}")
        left = [attempt for attempt, _ in failed]
        if left:
            time.sleep(0.02)


def _start_pod(pod: Member, made: LabState) -> processes.StartedProcess:
    command = [sys.executable, "-I", "-S", echo.__file__, "--pod", pod.name, "--node", pod.node]
    path = made.logs / f"{pod.name}.log"
    with path.open("wb") as log:
        launcher = subprocess.Popen(
            [*command, "--port", str(made.config.port)],
            cwd="/",
            env=os.environ | pod.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_as_grandchild(namespaces.entry_in_child(pod.namespace, pod.cgroup)),
        )
        launcher.wait()
    for pid in processes.in_cgroup(pod.cgroup):
        if found := processes.identity(pid):
            return found
    raise ProbeError(f"{pod.name} exited at once: see {path}")


def _as_grandchild(entry: Callable[[], None]) -> Callable[[], None]:
    """Make the launched process one that nobody has to wait for."""

    def leave() -> None:
        if os.fork():
            os._exit(0)
        os.setsid()
        entry()

    return leave


def _batch(tool: str, lines: Sequence[str], namespace: str) -> None:
    """Run the lines in the calling thread's namespace."""
    if not lines:
        return
    path = shutil.which(tool, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if not path:
        raise ProbeError(f"{tool} is missing: install iproute2")
    text = "\n".join(lines) + "\n"
    done = subprocess.run(
        [path, "-batch", "-"], input=text, text=True, capture_output=True, check=False
    )
    if done.returncode:
        failed = re.search(r"Command failed -:(\d+)", done.stderr)
        line = lines[int(failed[1]) - 1] if failed else "-batch"
        reason = done.stderr.strip().splitlines()[0] if done.stderr.strip() else "no reason given"
        raise ProbeError(f"{namespace}: {tool} {line}: {reason}")


def _try(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, str]]:
    """The attempts that failed, each with the reason. All connect at the same time."""
    deadline = time.monotonic() + _ATTEMPT_SECONDS
    with contextlib.ExitStack() as opened:
        for attempt, sock in list(_connect(attempts, opened)):
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            if reason := _converse(sock, attempt):
                yield attempt, reason


def _connect(
    attempts: Sequence[Attempt], opened: contextlib.ExitStack
) -> Iterator[tuple[Attempt, socket.socket]]:
    for source, group in groupby(attempts, key=lambda attempt: attempt.source):
        with source.entered():
            for attempt in group:
                family = socket.AF_INET6 if ":" in attempt.address else socket.AF_INET
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                opened.enter_context(sock)
                sock.connect_ex((attempt.address, attempt.port))
                yield attempt, sock


def _converse(sock: socket.socket, attempt: Attempt) -> str:
    """Why the attempt failed, or "". sendall() raises the error of a failed connect."""
    try:
        sock.sendall(b"\n")
        answer = sock.recv(256).decode().strip() if attempt.pod else ""
    except ConnectionRefusedError:
        return "refused" if attempt.pod else ""
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "" if answer == attempt.pod else f"answered by {answer!r}"


def take_down(name: str) -> bool:
    """Remove a lab; False when there is none. EbpflbError if something cannot be removed."""
    with state.locked(name):
        if (state.directory_of(name) / state.FILE).exists():
            remove(state.load(name))
            return True
    with state.locked_root():
        state.drop_unmade(name)
    return False


def remove_orphans() -> Iterator[str]:
    """Take down the labs whose owner has ended; for each a line, also if it cannot be removed."""
    for name in filter(state.is_orphan, state.names()):
        try:
            if take_down(name):
                yield f"lab {name!r}: removed"
        except EbpflbError as error:
            yield str(error)


def remove(made: LabState) -> None:
    """Remove all that can be removed; if something cannot, the state is kept for another try.

    Devices go with their namespaces, pins with their file systems: an agent may have mounted more.
    """
    name, cgroup = made.config.name, Path(made.cgroup)
    inside = f"/{processes.TOP}/{name}/"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::") and inside in f"{line}/":
            raise ConfigError(f"this process runs inside lab {name!r} ({cgroup}): leave it")
    left = processes.end(Ownership(name, cgroup, frozenset(made.processes.values())))
    for namespace, inode in made.namespaces.items():
        namespaces.delete(namespace, inode)
    namespaces.detach_all(made.directory)
    if left:
        raise EbpflbError(
            f"lab {name!r}: {', '.join(left)} in {cgroup} is not part of the lab or does not exit: "
            "move or stop it, then take the lab down again"
        )
    processes.remove_cgroup(cgroup)
    made.discard()
