# SPDX-License-Identifier: Apache-2.0
"""What each thread of the agent may do: after their start they give up all else, for good.

What the kernel does not let a thread give up it keeps; the log and `ebpflb status` say so.
"""

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from ebpflb.dataplane.kernel import system_calls
from ebpflb.dataplane.kernel.capabilities import Capability, keep_only
from ebpflb.dataplane.kernel.landlock import restrict_files
from ebpflb.dataplane.kernel.system_calls import Refused, refuse
from ebpflb.dataplane.load import compile_cache
from ebpflb.log import fields

_log = logging.getLogger("ebpflb.agent")

Started = TypeVar("Started")


class Files(NamedTuple):
    """What a thread may read (None: everything) and write: these, and what is beneath them."""

    readable: tuple[Path, ...] | None
    writable: tuple[Path, ...]


class Role(NamedTuple):
    """What a thread keeps. `files` None: all of them."""

    capabilities: frozenset[Capability]
    refused: tuple[Refused, ...]
    files: Files | None = None


def agent_role() -> Role:
    """The loop, what it executes to compile, and all threads without a role of their own.

    They keep all files: a thread that Landlock restricts cannot mount bpffs again, nor find the
    network namespaces of other processes.
    """
    return Role(frozenset(Capability), system_calls.ALL_BUT_THE_AGENTS)


def source_role(*, with_plugins: bool) -> Role:
    """The threads that read what users of the API, or authors of manifests, have written.

    `with_plugins`: they may execute programs. NET_ADMIN is for the priority by which the hooks know
    the agent's own sockets.
    """
    return Role(
        frozenset({Capability.NET_ADMIN, Capability.DAC_OVERRIDE}),
        (
            *(() if with_plugins else system_calls.PROGRAMS),
            *system_calls.THE_KERNELS_TABLES,
            *system_calls.SOCKETS_BUT_INTERNET,
            *system_calls.SIGNALS,
        ),
        Files(None, (compile_cache.DIRECTORY, Path(tempfile.gettempdir()))),
    )


def client_role() -> Role:
    """The thread that reads what clients send to the agent's ports. It may read Python's files."""
    package = Path(__file__).parent.parent
    installed = (*map(Path, sys.path[1:]), Path(sys.prefix), Path(sys.base_prefix))
    return Role(
        frozenset(),
        (
            *system_calls.PROGRAMS,
            *system_calls.THE_KERNELS_TABLES,
            *system_calls.NEW_SOCKETS,
            *system_calls.SIGNALS,
            *system_calls.CHANGED_FILES,
        ),
        Files((package, *installed, Path("/usr"), Path(os.devnull)), ()),
    )


class Rights:
    """What the process keeps although it should not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # What -> why.
        self._kept: Mapping[str, str] = {}

    @property
    def kept(self) -> Mapping[str, str]:
        """What could not be given up, and why. For any thread."""
        return self._kept

    def give_up(self, role: Role) -> None:
        """The calling thread, and each that it starts from now on, gives up all but its role's."""
        self._attempt("capabilities", lambda: keep_only(role.capabilities))
        self._attempt("system calls", lambda: refuse(role.refused))
        if files := role.files:
            self._attempt("files", lambda: restrict_files(*files))

    def started(self, role: Role, start: Callable[[], Started]) -> Started:
        """The result of `start`; the threads that it starts have this role."""
        with ThreadPoolExecutor(1, initializer=lambda: self.give_up(role)) as executor:
            return executor.submit(start).result()

    def _attempt(self, what: str, give_up: Callable[[], None]) -> None:
        try:
            give_up()
        except Exception as error:  # noqa: BLE001  no right that stays may end the agent
            with self._lock:
                if what not in self._kept:
                    self._kept = {**self._kept, what: str(error)}
                    _log.warning("cannot give up rights: %s", error, extra=fields(kept=what))
