# SPDX-License-Identifier: Apache-2.0
"""Debian packages in a separate folder, created once, that are not installed on the machine."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.harness.binaries import locked


def debian_folder(suite: str, package: str) -> Path:
    """The root of a small Debian with a package and its dependencies; the first time takes minutes.

    Nothing of it is started. CalledProcessError if debootstrap fails.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "ebpflb" / f"debian-{suite}-{package}"
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            building = folder.with_suffix(".new")
            shutil.rmtree(building, ignore_errors=True)
            command = ["debootstrap", "--variant=minbase", f"--include={package}", suite]
            subprocess.run([*command, building], check=True, stdout=subprocess.DEVNULL)
            building.rename(folder)
    return folder
