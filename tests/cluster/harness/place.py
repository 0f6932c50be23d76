# SPDX-License-Identifier: Apache-2.0
"""A member of a cluster: a network namespace and a cgroup in which processes run."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ebpflb.errors import EbpflbError
from ebpflb.lab import namespaces
from tests.cluster.harness.layout import Layout

_PR_SET_PDEATHSIG = 1
_STOP_PATIENCE = 5.0
_LAST_LINES = 5

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Daemon:
    """A background process; its output is in `log`."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """EbpflbError with its last output, if it has exited."""
        if self.process.poll() is not None:
            ended = f"ended with {self.process.returncode}"
            raise EbpflbError(f"{self.name} {ended}: {self._last_lines()}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Terminate it, kill it after a while, and wait for it."""
        self.process.send_signal(number)
        try:
            self.process.wait(_STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
        """Wait for a condition. EbpflbError if the process exits first, or after `timeout` s."""
        deadline = time.monotonic() + timeout
        while not condition():
            self.check()
            if time.monotonic() > deadline:
                late = f"not {what} within {timeout:.0f} s"
                raise EbpflbError(f"{self.name}: {late}: {self._last_lines()}")
            time.sleep(0.05)

    def _last_lines(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])


@dataclass(slots=True)
class Place:
    """A member of a cluster. ip, ip6: its addresses on the underlay. folder: its files and logs.

    prefix: is prepended to each command. owned: daemons end together with this process.
    """

    name: str
    ip: str
    netns: Path
    cgroup: Path
    folder: Path
    owned: bool
    prefix: tuple[str, ...] = ()
    daemons: list[Daemon] = field(default_factory=list)
    ip6: str = ""

    @classmethod
    def of(cls, layout: Layout, name: str, *, owned: bool = True) -> Self:
        """The member of that name."""
        return cls(
            name=name,
            ip=layout.address(name),
            ip6=layout.address6(name),
            netns=namespaces.path_of(layout.namespace(name)),
            cgroup=layout.cgroup(name),
            folder=layout.folder / name,
            owned=owned,
        )

    def exec(
        self,
        argv: Sequence[str | Path],
        *,
        input: str | None = None,
        timeout: float = 60.0,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there until it exits, with its output as text."""
        return subprocess.run(
            [*self.prefix, *map(str, argv)],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
            preexec_fn=self._entry(),
        )

    def popen(self, argv: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        """Start a command there; options are those of subprocess.Popen."""
        command = [*self.prefix, *map(str, argv)]
        return subprocess.Popen(command, preexec_fn=self._entry(), **options)

    def start(self, name: str, argv: Sequence[str | Path], **environment: str) -> Daemon:
        """Start a background process with its own log, which a restart appends to."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.log"
        with path.open("ab") as log:
            process = self.popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | environment,
            )
        daemon = Daemon(name, process, path)
        self.daemons = [*(item for item in self.daemons if item.name != name), daemon]
        return daemon

    def daemon(self, name: str) -> Daemon:
        """A daemon that was started here. EbpflbError when there is none of that name."""
        for daemon in self.daemons:
            if daemon.name == name:
                return daemon
        raise EbpflbError(f"{self.name}: no {name} was started by this process")

    @property
    def home_cgroup(self) -> Path:
        """Put processes into this cgroup."""
        return self.cgroup

    def reap(self) -> None:
        """Wait for daemons that were killed from elsewhere."""
        for daemon in self.daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.process.wait(_STOP_PATIENCE)

    def _entry(self) -> Callable[[], None]:
        enter = namespaces.entry_in_child(self.netns, self.home_cgroup)
        owned = self.owned

        def prepare() -> None:
            enter()
            if owned:
                _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

        return prepare
