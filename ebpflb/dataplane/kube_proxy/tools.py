# SPDX-License-Identifier: Apache-2.0
"""Runs iptables, nft, ipset and others, and finds a kube-proxy that is still running.

Everything concerns the network namespace of the calling thread.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from ebpflb.errors import EbpflbError

# A service's PATH may lack the directories where distributions put them.
_PATH = os.pathsep.join(("/usr/sbin", "/sbin", "/usr/bin", "/bin"))
_PROC_NET = Path("/proc/thread-self/net")
# The slowest command restores tens of thousands of chains.
_SECONDS = 600.0
_PROC = Path("/proc")
# How iptables-nft-save, nft and ipset report that the kernel lacks what they would list.
_LACKING = re.compile(
    "Protocol not supported|Operation not supported|Failed to initialize nft"
    "|Cannot open session to kernel"
)


def program_path(name: str) -> str | None:
    """The path of a program; None if it is not installed."""
    return shutil.which(name) or shutil.which(name, path=_PATH)


def run(*argv: str, stdin: str = "") -> str:
    """The output of a program. EbpflbError with its own message if it fails."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            argv,
            input=stdin,
            env=environment,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EbpflbError(f"{Path(argv[0]).name}: {error}") from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
        raise EbpflbError(f"{' '.join((Path(argv[0]).name, *argv[1:]))}: {said}")
    return done.stdout


def run_if_supported(*argv: str) -> str:
    """The output of a program; empty if the kernel lacks what it would list."""
    try:
        return run(*argv)
    except EbpflbError as error:
        if _LACKING.search(str(error)):
            return ""
        raise


def proc_net(name: str) -> str:
    """A file below /proc/net; empty if the kernel does not have it."""
    try:
        return (_PROC_NET / name).read_text()
    except OSError:
        return ""


def running_kube_proxies(proc: Path = _PROC) -> list[int]:
    """The ids of the kube-proxy processes in the calling thread's network namespace.

    They would restore what is removed. Only processes in our own PID namespace are seen: in a
    container, all of the node's only with the host's PID namespace. A kube-proxy inside another
    program (k3s) is not found.
    """
    here = _link(proc / "thread-self/ns/net")
    ids = sorted(int(path.name) for path in proc.iterdir() if path.name.isdigit())
    return [
        pid
        for pid in ids
        if _is_kube_proxy(proc / str(pid)) and _link(proc / str(pid) / "ns/net") == here
    ]


def _is_kube_proxy(process: Path) -> bool:
    if Path(_link(process / "exe").removesuffix(" (deleted)")).name == "kube-proxy":
        return True
    try:
        return (process / "comm").read_text().strip() == "kube-proxy"
    except OSError:
        return False


def _link(path: Path) -> str:
    """The target of a link; empty for a process that has ended."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
