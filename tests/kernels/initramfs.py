# SPDX-License-Identifier: Apache-2.0
"""The first files of a booting kernel: busybox, the modules that reach the root, and /init."""

import gzip
import lzma
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.kernels.packages import Image

_BUSYBOX = "bin/busybox"
_INIT = Path(__file__).parent / "init"
_NEEDED = ("virtio_pci", "9pnet_virtio", "9p", "overlay")


def build(image: Image, root: Path, shares: Iterable[Path], folder: Path) -> Path:
    """Write the archive into an existing folder.

    `root`: the files of the machine. `shares`: places where /init mounts a folder of that name.
    """
    tree = folder / "initramfs"
    for name in ("bin", "modules", "proc", "sys", "dev", "lower", "memory", "whole"):
        (tree / name).mkdir(parents=True)
    shutil.copy(root / _BUSYBOX, tree / "bin")
    shutil.copy(_INIT, tree / "init")
    (tree / "shares").write_text("".join(f"{name}\n" for name in shares))
    for number, module in enumerate(_modules(image)):
        (tree / "modules" / f"{number:02}.ko").write_bytes(_plain(module))
    return _archive(tree, folder / "initramfs.gz")


def _modules(image: Image) -> list[Path]:
    """The files of the needed modules, each after its dependencies."""
    found: dict[Path, None] = {}
    for name in _NEEDED:
        command = ["modprobe", f"--dirname={image.modules.parents[2]}", "--show-depends"]
        command += [f"--set-version={image.release}", name]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for line in shown.splitlines():
            kind, _, path = line.strip().partition(" ")
            if kind == "insmod":
                found[Path(path)] = None
    return list(found)


def _plain(module: Path) -> bytes:
    content = module.read_bytes()
    return lzma.decompress(content) if module.suffix == ".xz" else content


def _archive(tree: Path, target: Path) -> Path:
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    packed = subprocess.run(
        ["busybox", "cpio", "--create", "--format=newc"],
        cwd=tree,
        input=names.encode(),
        capture_output=True,
        check=True,
    )
    target.write_bytes(gzip.compress(packed.stdout, 1))
    return target
