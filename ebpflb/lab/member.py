# SPDX-License-Identifier: Apache-2.0
"""One namespace of a lab and how to run something in it."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ebpflb.errors import ConfigError
from ebpflb.lab import namespaces, processes
from ebpflb.lab.layout import SeatKind
from ebpflb.lab.load import LoadOptions, LoadResult
from ebpflb.lab.traffic import LoadRun


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
        return self._address(with_colon=False)

    @property
    def ipv6(self) -> str:
        return self._address(with_colon=True)

    def popen(self, argv: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """Start a process inside the namespace and the cgroup; options as of subprocess.Popen.

        Text mode unless told otherwise. The mounts are the caller's: /sys/class/net shows the
        caller's devices, /proc/sys/net those of the namespace. ConfigError when the lab is down.
        """
        return subprocess.Popen(list(argv), **self._options(options))

    def exec(
        self, argv: Sequence[str], *, check: bool = True, timeout: float = 30, **options: Any
    ) -> "subprocess.CompletedProcess[Any]":
        """Run a command to its end and capture its output, as subprocess.run.

        check: CalledProcessError on another exit status than 0; its notes hold the output.
        """
        options = {"capture_output": True} | self._options(options)
        done = subprocess.run(list(argv), check=False, timeout=timeout, **options)
        if check and done.returncode:
            error = subprocess.CalledProcessError(
                done.returncode, done.args, done.stdout, done.stderr
            )
            error.add_note(f"on {self.name}: {done.stdout or ''}{done.stderr or ''}".strip())
            raise error
        return done

    def become(self, argv: Sequence[str]) -> NoReturn:
        """Turn the calling process into the command. OSError when that cannot be run."""
        self._check_there()
        namespaces.entry_in_child(self.namespace, self.cgroup)()
        os.execvpe(argv[0], list(argv), os.environ | self.environment())  # noqa: S606 - no shell

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread is in the namespace (not in the cgroup): for sockets of one's own."""
        self._check_there()
        with namespaces.entered(self.namespace):
            yield

    def load(self, address: str, port: int, **options: Any) -> LoadResult:
        """Send connections from here and wait for their end; options are those of LoadOptions."""
        return self.start_load(address, port, **options).result()

    def start_load(self, address: str, port: int, **options: Any) -> LoadRun:
        """Send connections from here; returns when the first ones are being made."""
        run = LoadRun(self.popen, address, port, LoadOptions(**options))
        run.wait_started()
        return run

    def environment(self) -> dict[str, str]:
        return {processes.MARKER: processes.marker(self.lab, self.name)}

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        self._check_there()
        environment = (options.get("env") or os.environ) | self.environment()
        entry = namespaces.entry_in_child(self.namespace, self.cgroup)
        return {"text": True} | options | {"env": environment, "preexec_fn": entry}

    def _check_there(self) -> None:
        if not (self.namespace.exists() and self.cgroup.exists()):
            raise ConfigError(f"{self.name}: lab {self.lab!r} is down")

    def _address(self, *, with_colon: bool) -> str:
        for address in self.addresses:
            if (":" in address) == with_colon:
                return address
        family = "IPv6" if with_colon else "IPv4"
        raise ConfigError(f"{self.name} has no {family} address: lab {self.lab!r} is without it")


@dataclass(frozen=True, slots=True)
class LabNode(Member):
    """A node, with what an agent on it needs to know. cluster_cidr: the pods of all nodes."""

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
            "HOST_DEVICES": ",".join(self.host_devices),
            "WORKLOAD_DEVICES": "veth*",
            "CLUSTER_CIDR": ",".join(self.cluster_cidr),
        }
        marked = Member.environment(self)
        return marked | {f"EBPFLB_{name}": value for name, value in settings.items()}
