# SPDX-License-Identifier: Apache-2.0
"""The files that a booted machine runs with: those of this machine, or Debian's of another
architecture.

Debian's are of the release that runs here, so that Python is the same. Packages are unpacked, not
configured: nothing of theirs runs here.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tests.kernels.apt import CACHE, Apt, with_security
from tests.kernels.architecture import AMD64, Architecture

CHECKOUT = Path(__file__).resolve().parents[2]

_GUEST = Path(__file__).parent / "guest"
_DEBIAN = (
    *("busybox-static", "conntrack", "iproute2", "ipset", "iptables", "kmod", "libbpf1"),
    *("nftables", "procps", "python3", "python3-bpfcc", "python3-seccomp"),
)
# Of the modules that tests import, these need their compiled parts.
_COMPILED = ("PyYAML", "hypothesis")
_WHEELS, _OTHERS = Path("/wheels"), Path("/packages")


class Userland(NamedTuple):
    """`root`: the files, never written. `shares`: more folders of this machine, by their place.

    `modules`: Python's first import path.
    """

    root: Path
    shares: Mapping[Path, Path]
    python: str
    modules: Sequence[Path]


def fetch(architecture: Architecture) -> Userland:
    """From the cache if the packages there are still the newest. Errors: KernelError."""
    if architecture is AMD64:
        # Mounted separately, because it may be below /tmp, which the guest has in memory.
        return Userland(Path("/"), {CHECKOUT: CHECKOUT}, sys.executable, (_GUEST, CHECKOUT))
    folder = CACHE / architecture.name
    apt = Apt(
        folder / "apt",
        with_security(platform.freedesktop_os_release()["VERSION_CODENAME"]),
        folder.name,
    )
    apt.refresh()
    wheels = [f"{name}=={version(name)}" for name in _COMPILED]
    name = hashlib.sha256(f"{apt.plan(_DEBIAN)}{wheels}".encode()).hexdigest()[:16]
    root = folder / f"root-{name}"
    if not root.exists():
        _build(root, apt.download_all(_DEBIAN), wheels, architecture)
        for other in folder.glob("root-*"):
            if other != root:
                shutil.rmtree(other)
    shares = {CHECKOUT: CHECKOUT, _OTHERS: Path(sysconfig.get_path("purelib"))}
    return Userland(root, shares, "/usr/bin/python3", (CHECKOUT, _WHEELS, _OTHERS))


def _build(
    root: Path, packages: Sequence[Path], wheels: Sequence[str], architecture: Architecture
) -> None:
    """Python's bytecode is compiled here, where it takes seconds."""
    building = root.with_name(f"new-{root.name}")
    shutil.rmtree(building, ignore_errors=True)
    for name in ("bin", "lib", "sbin"):
        (building / "usr" / name).mkdir(parents=True)
        (building / name).symlink_to(f"usr/{name}")
    for package in packages:
        _unpack(package, building)
    target = building / _WHEELS.relative_to("/")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={target}"]
    pip += ["--root-user-action=ignore", "--only-binary=:all:"]
    pip += [f"--platform={architecture.wheels}", *wheels]
    subprocess.run(pip, check=True)
    python = (sys.executable, "-m", "compileall", "-q", "-j0", building / "usr/lib")
    subprocess.run(python, stdout=subprocess.DEVNULL, check=False)  # some are no Python 3
    building.rename(root)


def _unpack(package: Path, root: Path) -> None:
    """Unpack a package over others, and remove it."""
    command = ("dpkg-deb", "--fsys-tarfile", package)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as archive:
        tar = ["tar", "--extract", "--keep-directory-symlink", f"--directory={root}"]
        subprocess.run(tar, stdin=archive.stdout, check=True)
    package.unlink()
