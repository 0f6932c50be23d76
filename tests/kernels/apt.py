# SPDX-License-Identifier: Apache-2.0
"""Debian packages of any release and architecture, fetched and verified by apt.

apt gets its own directories: neither the package lists nor the sources of this machine change. This
machine's proxy settings apply.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.kernels.errors import KernelError

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ebpflb" / "kernels"

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_MIRROR = "http://deb.debian.org"
_ALONE = ("--no-install-recommends",)


def with_security(suite: str) -> list[str]:
    """A release and its security updates."""
    return [suite, f"{suite}-security"]


class Apt:
    """apt for some Debian suites and one architecture, in a directory. Errors: KernelError.

    It considers no package installed.
    """

    def __init__(self, folder: Path, suites: Sequence[str], architecture: str) -> None:
        self._folder = folder
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        lines = (f"deb [signed-by={_KEYRING}] {_archive(each)} {each} main\n" for each in suites)
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
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
        }
        self._options = [f"--option={name}={value}" for name, value in options.items()]

    def refresh(self) -> None:
        """Update the lists of packages."""
        self._run("apt-get", "update", "-qq")

    def needs(self, package: str) -> list[str]:
        """The dependencies of a package."""
        shown = self._run("apt-cache", "depends", "--important", package)
        parted = (line.strip().partition(": ") for line in shown.splitlines())
        return [name for kind, _, name in parted if kind == "Depends"]

    def download(self, package: str) -> Path:
        """The package's file; apt has verified its checksum against the signed list."""
        self._run("apt-get", "download", "-qq", package)
        (found,) = self._folder.glob(f"{package}_*.deb")
        return found

    def plan(self, packages: Sequence[str]) -> str:
        """A text that identifies packages and their dependencies, with their versions."""
        return self._run("apt-get", "install", "--simulate", *_ALONE, *packages)

    def download_all(self, packages: Sequence[str]) -> list[Path]:
        """The files of packages and of their dependencies."""
        self._run("apt-get", "install", "-qq", "--yes", "--download-only", *_ALONE, *packages)
        return sorted((self._folder / "cache/archives").glob("*.deb"))

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


def _archive(suite: str) -> str:
    return f"{_MIRROR}/{'debian-security' if suite.endswith('-security') else 'debian'}"
