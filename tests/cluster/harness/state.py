# SPDX-License-Identifier: Apache-2.0
"""Records of clusters: a file each, written before anything is created and removed last.

`down` needs only this file, so it also works after a crash or an interrupted `up`.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ebpflb.errors import ConfigError, EbpflbError
from ebpflb.lab.processes import StartedProcess, identity
from tests.cluster.harness import binaries
from tests.cluster.harness.layout import CLUSTERS_AT_ONCE, ROOT, Layout, check_name

_FILE = "state.json"


@dataclass(slots=True)
class State:
    """owner: the process whose end also ends the cluster; None for a permanent one.

    holders: by node, the process that keeps its mount namespace.
    """

    name: str
    index: int
    nodes: int
    owner: StartedProcess | None
    holders: dict[str, int]
    complete: bool = False

    @property
    def layout(self) -> Layout:
        """Names and addresses."""
        return Layout(self.name, self.index, self.nodes)

    @property
    def is_orphan(self) -> bool:
        """Whether its owner has exited."""
        return self.owner is not None and identity(self.owner.pid) != self.owner

    def save(self) -> None:
        """Replace the file atomically."""
        path = self.layout.folder / _FILE
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n")
        unfinished.replace(path)


def reserve(name: str, nodes: int, *, owned: bool) -> State:
    """Reserve a name and a number. ConfigError when the name is taken.

    owned: the cluster belongs to this process; otherwise it runs until somebody takes it down.
    """
    check_name(name)
    with locked():
        taken = {state.index for state in every()}
        if (ROOT / name / _FILE).exists():
            raise ConfigError(
                f"cluster {name!r} exists: python -m tests.cluster down {name} removes it"
            )
        free = [index for index in range(CLUSTERS_AT_ONCE) if index not in taken]
        if not free:
            raise ConfigError(f"{CLUSTERS_AT_ONCE} clusters are up: take one down first")
        (ROOT / name).mkdir(parents=True, exist_ok=True)
        state = State(name, free[0], nodes, identity(os.getpid()) if owned else None, {})
        state.save()
        return state


def load(name: str) -> State:
    """The state of a cluster. ConfigError when there is none of that name."""
    path = ROOT / check_name(name) / _FILE
    try:
        document = json.loads(path.read_text())
        owner = StartedProcess(*document["owner"]) if document["owner"] else None
        return State(**(document | {"owner": owner}))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no cluster {name!r}: python -m tests.cluster status shows those that are up"
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise EbpflbError(f"{path}: not a cluster's state: {error!r}") from error


def every() -> list[State]:
    """All clusters that are up, or partly up, except those being removed meanwhile."""
    found = []
    for path in sorted(ROOT.glob(f"*/{_FILE}")):
        with contextlib.suppress(ConfigError):
            found.append(load(path.parent.name))
    return found


def forget_root() -> None:
    """Remove the folder of all clusters after the last one."""
    with locked(), contextlib.suppress(OSError):
        ROOT.rmdir()


def folder_of(name: str) -> Path:
    """The folder of that cluster's files."""
    return ROOT / check_name(name)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """A lock around creating or removing what clusters share."""
    with binaries.locked(binaries.cache() / "clusters.lock"):
        yield
