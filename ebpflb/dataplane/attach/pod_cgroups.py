# SPDX-License-Identifier: Apache-2.0
"""The cgroups of pods, by the names that the kubelet gives them.

    kubepods/burstable/pod5a0c...                                       cgroupfs
    kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod5a0c....slice   systemd

They may be below other cgroups, as in a node that is itself a container. What is below a pod's is
the pod's own matter: a cluster inside it, for example.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"(?:.*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?")
_SEARCH_SECONDS = 60.0


class PodCgroups:
    """Finds cgroups below `root`, and remembers them."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._root = root
        self._clock = clock
        self._known: dict[str, Path] = {}
        # Those that the last search did not find, and when that was.
        self._missing: frozenset[str] = frozenset()
        self._searched = 0.0

    def ids(self, uids: Collection[str]) -> frozenset[int]:
        """The ids of the cgroups of pods with these uids, as far as they exist.

        A pod has its cgroup before it has an address. So there is a search for each new uid, and
        once a minute if there are others without a cgroup.
        """
        self._known = {uid: path for uid, path in self._known.items() if uid in uids}
        missing = frozenset(uids) - self._known.keys()
        now = self._clock()
        if missing - self._missing or (missing and now - self._searched >= _SEARCH_SECONDS):
            self._known |= {uid: path for uid, path in _below(self._root) if uid in missing}
            self._missing, self._searched = missing - self._known.keys(), now
        return frozenset(self._present())

    def _present(self) -> Iterator[int]:
        for path in self._known.values():
            with suppress(OSError):
                # On 64 bits, the inode number is the id that the programs get.
                yield path.stat().st_ino


def _below(root: Path) -> Iterator[tuple[str, Path]]:
    """The cgroups of pods, with their uids; cgroups may come and go meanwhile."""
    for place, names, _ in os.walk(root):
        others = []
        for name in names:
            if found := _NAME.fullmatch(name):
                yield found[1].replace("_", "-"), Path(place, name)
            else:
                others.append(name)
        names[:] = others
