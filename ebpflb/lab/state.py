# SPDX-License-Identifier: Apache-2.0
"""What a lab has made, recorded before it is made: /run/ebpflb-lab/<name>/state.json.

`down` works from this file alone, so it also works for a lab that was interrupted half-way.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ebpflb.dataplane.kernel.libc import owned
from ebpflb.errors import ConfigError, EbpflbError
from ebpflb.lab import processes
from ebpflb.lab.layout import LABS_AT_ONCE, Cni, LabConfig, Stack
from ebpflb.lab.processes import StartedProcess

ROOT = Path("/run/ebpflb-lab")

FILE = "state.json"
# Not in the state, which says what there is to remove, not when.
_OWNER = "owner.json"


@dataclass(slots=True)
class LabState:
    """namespaces: inode number by name, None if not known to be made. complete: `up` came through.

    processes: the pod servers, by pod. cgroup and bpffs: what `down` removes with all below it.
    """

    config: LabConfig
    index: int
    cgroup: str
    bpffs: str
    namespaces: dict[str, int | None] = field(default_factory=dict)
    processes: dict[str, StartedProcess] = field(default_factory=dict)
    complete: bool = False

    @property
    def directory(self) -> Path:
        return directory_of(self.config.name)

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def save(self) -> None:
        """Write the file as a whole, or leave the old one."""
        path = self.directory / FILE
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n")
        unfinished.replace(path)

    def discard(self) -> None:
        """Forget the lab, and after the last one the directories of all labs."""
        with locked_root():
            processes.remove_cgroup_if_empty(Path(self.cgroup).parent)
            shutil.rmtree(self.directory, ignore_errors=True)
            with contextlib.suppress(OSError):
                ROOT.rmdir()


def directory_of(name: str) -> Path:
    return ROOT / name


def load(name: str) -> LabState:
    """ConfigError when there is no such lab, EbpflbError when its file cannot be used."""
    path = directory_of(name) / FILE
    try:
        return _decode(json.loads(path.read_text()))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no lab {name!r}: ebpflb lab status shows those that are up"
        ) from None
    except (TypeError, ValueError, KeyError) as error:
        raise EbpflbError(f"{path}: not a lab's state: {error!r}") from error


def drop_unmade(name: str) -> None:
    """Remove the directory of a lab whose making was interrupted before its state was written.

    Nothing else had been made by then. Call it under locked_root().
    """
    directory = directory_of(name)
    if directory.exists() and not (directory / FILE).exists():
        shutil.rmtree(directory)


def own(name: str) -> None:
    """Record that the lab must not outlive this process."""
    (directory_of(name) / _OWNER).write_text(json.dumps(processes.identity(os.getpid())))


def is_orphan(name: str) -> bool:
    """Whether the lab must not outlive a process that has ended."""
    try:
        owner = StartedProcess(*json.loads((directory_of(name) / _OWNER).read_text()))
    except FileNotFoundError:
        return False
    return processes.identity(owner.pid) != owner


def names() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob(f"*/{FILE}"))


def free_index() -> int:
    """The lowest lab number not in use; call it under locked_root()."""
    taken = {load(name).index for name in names()}
    if free := set(range(LABS_AT_ONCE)) - taken:
        return min(free)
    raise ConfigError(f"{LABS_AT_ONCE} labs are up: take one down first")


@contextlib.contextmanager
def locked_root() -> Iterator[None]:
    """Only one process at a time chooses a number or removes the directory of all labs."""
    with owned(_open_root()):
        yield


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Only one process at a time builds a lab or takes it down. ConfigError if another does."""
    try:
        fd = os.open(directory_of(name), os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield
        return
    with owned(fd):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"lab {name!r} is being built or taken down by another process"
            raise ConfigError(text) from None
        yield


def _open_root() -> int:
    """Open and lock ROOT, again if somebody has just removed it."""
    while True:
        ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            fd = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), ROOT.stat()):
                return fd
        os.close(fd)


def _decode(document: Any) -> LabState:
    config = document["config"]
    config |= {
        "cni": Cni(config["cni"]),
        "family": Stack(config["family"]),
        "zones": tuple(config["zones"]),
    }
    processes = {pod: StartedProcess(*pair) for pod, pair in document["processes"].items()}
    return LabState(**(document | {"config": LabConfig(**config), "processes": processes}))
