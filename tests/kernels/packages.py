# SPDX-License-Identifier: Apache-2.0
"""Kernels of Debian releases, fetched and checked by apt, and unpacked into a cache.

apt gets directories of its own: neither the package lists nor the sources of this machine change.
What the machine says about proxies holds here too.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.kernels.errors import KernelError

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ebpflb" / "kernels"

# The newest kernel of a Debian release, with its security updates.
RELEASES: Mapping[str, str] = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie"}

_PACKAGE = "linux-image-amd64"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_MIRROR = "http://deb.debian.org"


class Image(NamedTuple):
    """An unpacked kernel. `release` is what uname says, `modules` its directory of modules."""

    version: str
    release: str
    vmlinuz: Path
    modules: Path


def fetch(version: str) -> Image:
    """The kernel, from the cache if the package there is still the newest. Errors: KernelError."""
    folder = CACHE / version
    apt = _Apt(folder / "apt", RELEASES[version])
    package = apt.newest()
    unpacked = folder / package
    if not unpacked.exists():
        _unpack(apt.download(package), unpacked)
        for other in folder.glob("linux-image-*"):
            if other != unpacked:
                shutil.rmtree(other)
    return _image(version, unpacked)


class _Apt:
    """apt for one Debian release, in a directory of its own."""

    def __init__(self, folder: Path, suite: str) -> None:
        self._folder = folder
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        source = f"deb [signed-by={_KEYRING}] {_MIRROR}"
        lines = (
            f"{source}/debian {suite} main\n",
            f"{source}/debian-security {suite}-security main\n",
        )
        (folder / "sources.list").write_text("".join(lines))
        options = {
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State::Lists": folder / "lists",
            "Dir::State::Status": "/dev/null",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "root",
            "APT::Architecture": "amd64",
        }
        self._options = [f"--option={name}={value}" for name, value in options.items()]

    def newest(self) -> str:
        """The package of the newest kernel there is."""
        self._run("apt-get", "update", "-qq")
        shown = self._run("apt-cache", "depends", "--important", _PACKAGE)
        for line in shown.splitlines():
            kind, _, name = line.strip().partition(": ")
            if kind == "Depends" and name.startswith("linux-image-"):
                return name
        raise KernelError(f"{_PACKAGE} names no kernel; apt says: {shown.strip()}")

    def download(self, package: str) -> Path:
        """The package's file; apt has checked its sum against the signed list."""
        self._run("apt-get", "download", "-qq", package)
        (found,) = self._folder.glob(f"{package}_*.deb")
        return found

    def _run(self, command: str, *arguments: str) -> str:
        run = subprocess.run(
            [command, *self._options, *arguments],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise KernelError(f"{command} {' '.join(arguments)}: {run.stderr.strip()}")
        return run.stdout


def _unpack(package: Path, target: Path) -> None:
    """Unpack a package and remove it; its modules become known to modprobe."""
    building = target.with_name(target.name + ".new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "--extract", package, building], check=True)
    if not (building / "lib").exists():
        (building / "lib").symlink_to("usr/lib")
    (modules,) = (building / "lib/modules").iterdir()
    subprocess.run(["depmod", f"--basedir={building}", modules.name], check=True)
    building.rename(target)
    package.unlink()


def _image(version: str, folder: Path) -> Image:
    (modules,) = (folder / "lib/modules").iterdir()
    release = modules.name
    return Image(version, release, folder / "boot" / f"vmlinuz-{release}", modules.resolve())
