# SPDX-License-Identifier: Apache-2.0
"""Is kube-proxy running here? It would write again what is removed.

Seen are the processes of the own PID namespace: in a container all of the node's only with the
host's PID namespace. A kube-proxy inside another program (k3s) cannot be told.
"""

import os
from pathlib import Path

_NAME = "kube-proxy"
_DELETED = " (deleted)"
_PROC = Path("/proc")


def running_kube_proxies(proc: Path = _PROC) -> list[int]:
    """The ids of the kube-proxy processes in the calling thread's network namespace."""
    here = _link(proc / "thread-self/ns/net")
    ids = sorted(int(path.name) for path in proc.iterdir() if path.name.isdigit())
    return [
        pid
        for pid in ids
        if _is_kube_proxy(proc / str(pid)) and _link(proc / str(pid) / "ns/net") == here
    ]


def _is_kube_proxy(process: Path) -> bool:
    if Path(_link(process / "exe").removesuffix(_DELETED)).name == _NAME:
        return True
    try:
        return (process / "comm").read_text().strip() == _NAME
    except OSError:
        return False


def _link(path: Path) -> str:
    """Where a link leads; nowhere for a process that has ended."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
