# SPDX-License-Identifier: Apache-2.0
"""Kernels of Debian releases, fetched by apt and unpacked into a cache."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.kernels.apt import CACHE, Apt, with_security
from tests.kernels.architecture import Architecture
from tests.kernels.errors import KernelError

# The newest kernel of a Debian release, with its security updates, and the newest there are.
RELEASES: Mapping[str, Sequence[str]] = {
    "5.10": with_security("bullseye"),
    "6.1": with_security("bookworm"),
    "6.12": with_security("trixie"),
    "sid": ["sid"],
    "backports": ["trixie-backports"],
}


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
    package, *parts = _newest(apt, f"linux-image-{architecture.name}")
    unpacked = folder / package
    if not unpacked.exists():
        _unpack([apt.download(each) for each in (package, *parts)], unpacked)
        for other in folder.glob("linux-image-*"):
            if other != unpacked:
                shutil.rmtree(other)
    return _image(version, unpacked)


def _newest(apt: Apt, package: str) -> list[str]:
    """The package of the newest kernel there is, and those of its parts."""
    found = [name for name in apt.needs(package) if name.startswith("linux-image-")]
    if not found:
        raise KernelError(f"{package} names no kernel")
    release = found[0].removeprefix("linux-image-")
    return [found[0], *(name for name in apt.needs(found[0]) if name.endswith(release))]


def _unpack(packages: Sequence[Path], target: Path) -> None:
    """Unpack packages and remove them; their modules become known to modprobe."""
    building = target.with_name(target.name + ".new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    for each in packages:
        subprocess.run(["dpkg-deb", "--extract", each, building], check=True)
    if not (building / "lib").exists():
        (building / "lib").symlink_to("usr/lib")
    (modules,) = (building / "lib/modules").iterdir()
    subprocess.run(["depmod", f"--basedir={building}", modules.name], check=True)
    building.rename(target)
    for each in packages:
        each.unlink()


def _image(version: str, folder: Path) -> Image:
    (modules,) = (folder / "lib/modules").iterdir()
    release = modules.name
    # The newest ones have it next to the modules.
    places = [modules / "vmlinuz", folder / "boot" / f"vmlinuz-{release}"]
    vmlinuz = next(place for place in places if place.exists())
    return Image(version, release, vmlinuz, modules.resolve())
