# SPDX-License-Identifier: Apache-2.0
"""One namespace of a lab, and what runs in it: commands, load, and on a node the agent."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from ebpflb.errors import ConfigError, EbpflbError
from ebpflb.lab import load, namespaces, processes
from ebpflb.lab.layout import SeatKind
from ebpflb.lab.load import LoadOptions, LoadResult

# An agent compiles its programs: 20 s of a slow core, and many labs may be made at once.
_START_TIMEOUT = 300.0
# For a load to start, and for a process to end after SIGTERM.
_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Member:
    """A node, a pod, the client or the underlay. node: the name of the node it is on, or ""."""

    lab: str
    kind: SeatKind
    name: str
    node: str
    namespace: Path
    cgroup: Path
    addresses: tuple[str, ...]

    @property
    def ipv4(self) -> str:
        return self.address(4)

    @property
    def ipv6(self) -> str:
        return self.address(6)

    def address(self, version: int) -> str:
        """The address of IP version 4 or 6. ConfigError in a lab without it."""
        for address in self.addresses:
            if (":" in address) == (version == 6):  # noqa: PLR2004 - an IP version is a name
                return address
        raise ConfigError(
            f"{self.name} has no IPv{version} address: lab {self.lab!r} is without it"
        )

    def popen(self, argv: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """Start a process inside the namespace and the cgroup; options as of subprocess.Popen.

        Text mode by default. The mounts are the caller's: /sys/class/net shows the caller's
        devices, /proc/sys/net those of the namespace. ConfigError when the lab is down.
        """
        return subprocess.Popen(list(argv), **self._options(options))

    def exec(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 120, **options: Any
    ) -> "subprocess.CompletedProcess[Any]":
        """Run a command to its end and capture its output, as subprocess.run.

        The notes of a CalledProcessError hold the output.
        """
        options = {"capture_output": True} | self._options(options)
        try:
            return subprocess.run(list(argv), check=check, timeout=timeout, **options)
        except subprocess.CalledProcessError as error:
            error.add_note(f"on {self.name}: {error.stdout or ''}{error.stderr or ''}".strip())
            raise

    def become(self, argv: Sequence[str]) -> NoReturn:
        """Replace the calling process with the command. OSError when that cannot be run."""
        self._check_up()
        namespaces.entry_in_child(self.namespace, self.cgroup)()
        os.execvpe(argv[0], list(argv), os.environ | self.environment())  # noqa: S606 - no shell

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in the namespace, not in the cgroup: to open sockets there."""
        self._check_up()
        with namespaces.entered(self.namespace):
            yield

    def load(self, address: str, port: int, **options: Any) -> LoadResult:
        """Send connections from here and wait for their end; options are those of LoadOptions."""
        return self.start_load(address, port, **options).result()

    def start_load(self, address: str, port: int, **options: Any) -> "LoadRun":
        """Send connections from here; returns when the first ones have been made."""
        run = LoadRun(self.popen, address, port, LoadOptions(**options))
        run.wait_started()
        return run

    def environment(self) -> dict[str, str]:
        return {processes.MARKER: processes.marker(self.lab, self.name)}

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        self._check_up()
        environment = (options.get("env") or os.environ) | self.environment()
        entry = namespaces.entry_in_child(self.namespace, self.cgroup)
        return {"text": True} | options | {"env": environment, "preexec_fn": entry}

    def _check_up(self) -> None:
        if not (self.namespace.exists() and self.cgroup.exists()):
            raise ConfigError(f"{self.name}: lab {self.lab!r} is down")


@dataclass(frozen=True, slots=True)
class LabNode(Member):
    """A node, with the settings of an agent on it. cluster_cidr: the pods of all nodes."""

    zone: str
    manifests: Path
    bpffs: Path
    query_socket: Path
    host_devices: tuple[str, ...]
    cluster_cidr: tuple[str, ...]

    def environment(self) -> dict[str, str]:
        settings = {
            "NODE_NAME": self.name,
            "MANIFESTS": str(self.manifests),
            "CGROUP_ROOT": str(self.cgroup),
            "BPFFS_ROOT": str(self.bpffs),
            "QUERY_SOCKET": str(self.query_socket),
            "FLOW_HISTORY_DIRECTORY": str(self.query_socket.parent / "flows"),
            "CLUSTER_CIDR": ",".join(self.cluster_cidr),
        }
        marked = Member.environment(self)
        return marked | {f"EBPFLB_{name}": value for name, value in settings.items()}


class LoadRun:
    """A load under way. It writes into a file, so it never waits for its reader.

    As a context manager it ends with the block.
    """

    def __init__(
        self,
        popen: "Callable[..., subprocess.Popen[Any]]",
        address: str,
        port: int,
        options: LoadOptions,
    ) -> None:
        self._options = options
        self._pods = Counter[str]()
        # So many bytes of the output.
        self._counted = 0
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the run
        script = [sys.executable, "-I", "-S", load.__file__, *options.arguments()]
        self._process = popen(
            [*script, "--", address, str(port)], stdout=self._output, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_started(self) -> None:
        """Return when the load says that it has started. EbpflbError if it does not."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            has_ended = self._process.poll() is not None
            text = self._text()
            if load.STARTED in text.splitlines():
                return
            if has_ended or time.monotonic() > deadline:
                self.kill()
                raise EbpflbError(f"the load did not start: {text.strip()[-500:]}")
            time.sleep(0.005)

    def pods(self) -> Counter[str]:
        """Which pods have answered connections that have ended by now."""
        file = self._output.fileno()
        text = os.pread(file, os.fstat(file).st_size - self._counted, self._counted)
        lines = text[: text.rfind(b"\n") + 1]
        self._counted += len(lines)
        self._pods += load.pods_of(lines.decode())
        return self._pods

    def result(self, timeout: float | None = None) -> LoadResult:
        """Wait for the end and count. EbpflbError when it does not end or broke off."""
        try:
            self._process.wait(timeout)
            return load.parse_output(self._text())
        except subprocess.TimeoutExpired as error:
            raise EbpflbError(f"the load was still running after {timeout} s") from error
        except ValueError as error:
            raise EbpflbError(f"{error}: {self._text().strip()[-500:]}") from error
        finally:
            self.kill()

    def stop(self) -> LoadResult:
        """No new connections; the result when those under way have ended."""
        self._process.terminate()
        return self.result(self._options.timeout + _TIMEOUT)

    def kill(self) -> None:
        """End it without a result; nothing happens if it has ended."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def _text(self) -> str:
        """Leaves the offset where it is, at which the load writes."""
        file = self._output.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode()


class NodeAgent:
    """`ebpflb run` on one node. Its log goes to a file; what it pinned stays when it ends."""

    def __init__(self, node: LabNode, log: Path, options: Sequence[str] = ()) -> None:
        self.node = node
        self.log = log
        self._options = options
        self._process: subprocess.Popen[Any] | None = None
        self._read_from = 0

    def start(self) -> None:
        """Start the process; `wait_in_sync()` returns when it has programmed its node."""
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self._process = self.node.popen(self.command(), stdout=output, stderr=output)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "ebpflb", "run", *self._options]

    def wait_in_sync(self) -> None:
        """EbpflbError with the last line of the log when the agent ends or takes too long."""
        deadline = time.monotonic() + _START_TIMEOUT
        while "in sync" not in self.said():
            if not self.is_running() or time.monotonic() > deadline:
                last = (self.said().splitlines() or ["its log is empty"])[-1]
                raise EbpflbError(f"{self.node.name}: the agent is not in sync: {last}")
            time.sleep(0.01)

    def said(self) -> str:
        """The log since the last start."""
        with self.log.open("rb") as output:
            output.seek(self._read_from)
            return output.read().decode(errors="replace")

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """0 before its start."""
        return self._process.pid if self._process else 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and its exit status."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise EbpflbError(f"{self.node.name}: the agent did not stop") from None


@contextlib.contextmanager
def running_agents(
    nodes: Iterable[LabNode], directory: Path, options: Sequence[str] = ()
) -> Iterator[dict[str, NodeAgent]]:
    """An agent in sync on every node, by the node's name; stopped at the end."""
    logs = {node: directory / f"agent-{node.name}.log" for node in nodes}
    agents = {node.name: NodeAgent(node, log, options) for node, log in logs.items()}
    try:
        for agent in agents.values():
            agent.start()
        for agent in agents.values():
            agent.wait_in_sync()
        yield agents
    finally:
        for agent in agents.values():
            agent.kill()
