# SPDX-License-Identifier: Apache-2.0
"""Kernels of Debian releases, fetched by apt and unpacked into a cache."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.kernels.apt import CACHE, Apt
from tests.kernels.architecture import Architecture
from tests.kernels.errors import KernelError

# The newest kernel of a Debian release, with its security updates.
RELEASES: Mapping[str, str] = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie"}


class Image(NamedTuple):
    """An unpacked kernel. `release` is what uname says, `modules` its directory of modules."""

    version: str
    release: str
    vmlinuz: Path
    modules: Path


def fetch(version: str, architecture: Architecture) -> Image:
    """The kernel, from the cache if the package there is still the newest. Errors: KernelError."""
    folder = CACHE / architecture.name / version
    apt = Apt(folder / "apt", RELEASES[version], architecture.name)
    apt.refresh()
    package = _newest(apt, f"linux-image-{architecture.name}")
    unpacked = folder / package
    if not unpacked.exists():
        _unpack(apt.download(package), unpacked)
        for other in folder.glob("linux-image-*"):
            if other != unpacked:
                shutil.rmtree(other)
    return _image(version, unpacked)


def _newest(apt: Apt, package: str) -> str:
    """The package of the newest kernel there is."""
    found = [name for name in apt.needs(package) if name.startswith("linux-image-")]
    if not found:
        raise KernelError(f"{package} names no kernel")
    return found[0]


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
