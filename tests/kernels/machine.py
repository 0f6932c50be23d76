# SPDX-License-Identifier: Apache-2.0
"""One run of one kernel in qemu, emulated: no machine needs to have KVM for it.

The root is a folder of this machine, read-only inside.
"""

import os
import shlex
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.kernels import initramfs
from tests.kernels.architecture import Architecture
from tests.kernels.compiler import Compiler
from tests.kernels.errors import KernelError
from tests.kernels.packages import Image
from tests.kernels.userland import CHECKOUT, Userland

_MEMORY, _CPUS = "3G", 2
_POLL_SECONDS = 0.1
_PASSED_ON = ("HOME", "LANG", "PATH", "TERM", "XDG_CACHE_HOME")

RESULTS = Path("/results")


class Machine(NamedTuple):
    """What is booted."""

    architecture: Architecture
    image: Image
    userland: Userland


def run(
    booted: Machine, command: Sequence[str], folder: Path, compiler: Compiler, timeout: float
) -> int:
    """Boot, run a Python command in the checkout, and return its exit status.

    Files that the command writes to RESULTS are in `folder`/results afterwards; its output is shown
    immediately. The machine ends in any case, even if this process is killed. Errors: KernelError,
    also when it takes longer than `timeout` seconds.
    """
    image = booted.image
    results = folder / "results"
    results.mkdir()
    (results / "run").write_text(_script(booted.userland, command))
    arguments = _arguments(booted, folder, results)
    deadline = time.monotonic() + timeout
    with subprocess.Popen(arguments, stdin=subprocess.DEVNULL, start_new_session=True) as machine:
        try:
            while machine.poll() is None:
                if time.monotonic() > deadline:
                    raise KernelError(f"Linux {image.version} did not end in {timeout:.0f} s")
                compiler.answer(results)
                time.sleep(_POLL_SECONDS)
        finally:
            machine.kill()
    status = results / "status"
    if not status.exists():
        raise KernelError(f"Linux {image.version} did not run the command to its end")
    return int(status.read_text())


def _script(userland: Userland, command: Sequence[str]) -> str:
    exports = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    path = ":".join(map(str, userland.modules))
    exports |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    lines = [
        *(f"export {name}={shlex.quote(value)}" for name, value in exports.items()),
        "ip link set lo up",
        "modprobe tun",
        f"cd {shlex.quote(str(CHECKOUT))}",
        shlex.join([userland.python, *command]),
        f"echo $? > {RESULTS}/status",
    ]
    return "\n".join(lines) + "\n"


def _arguments(booted: Machine, folder: Path, results: Path) -> list[str]:
    architecture, image, userland = booted
    shares = {Path("/lib/modules", image.release): image.modules, **userland.shares}
    first_files = initramfs.build(image, userland.root, shares, folder)
    tags = {f"share{number}": path for number, path in enumerate(shares.values())}
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *architecture.qemu,
        *("-accel", "tcg", "-smp", str(_CPUS), "-m", _MEMORY),
        *("-nographic", "-no-reboot", "-nic", "none"),
        *("-kernel", str(image.vmlinuz), "-initrd", str(first_files)),
        *("-append", f"console={architecture.console} quiet panic=-1"),
        *_shares({"root": userland.root, **tags}.items(), ",readonly=on"),
        *_shares([("results", results)]),
    ]


def _shares(folders: Iterable[tuple[str, Path]], options: str = "") -> list[str]:
    """Folders of this machine, as the one inside names them."""
    shares: list[str] = []
    for tag, path in folders:
        share = f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{options}"
        shares += ["-virtfs", share]
    return shares
