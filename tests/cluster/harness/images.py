# SPDX-License-Identifier: Apache-2.0
"""Container images of one static program each, as archives that `ctr images import` reads."""

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.harness.binaries import Recipe, binary, built


@dataclass(frozen=True, slots=True)
class Image:
    """A program at the root of an empty file system.

    recipe: how it is built; None for a program of binaries.RECIPES.
    """

    name: str
    program: str
    command: tuple[str, ...] = ()
    recipe: Recipe | None = None

    def build(self) -> Path:
        """The program, built now if it is not there yet, which can take minutes."""
        return built(self.program, self.recipe) if self.recipe else binary(self.program)

    def write(self, folder: Path) -> Path:
        """Write the archive, in the format of `docker save`."""
        layer = _tar({self.program: self.build().read_bytes()}, mode=0o755)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Entrypoint": [f"/{self.program}"], "Cmd": list(self.command)},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
            }
        ).encode()
        manifest = [
            {
                "Config": f"{_digest(config)}.json",
                "RepoTags": [self.name],
                "Layers": ["layer.tar"],
            }
        ]
        files = {
            "manifest.json": json.dumps(manifest).encode(),
            f"{_digest(config)}.json": config,
            "layer.tar": layer,
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name.rpartition('/')[2].partition(':')[0]}.tar"
        path.write_bytes(_tar(files, mode=0o644))
        return path


ECHO = Image("docker.io/ebpflb/echo:test", "echo", ("serve",))
PAUSE = Image("docker.io/ebpflb/pause:test", "echo", ("pause",))
COREDNS = Image("docker.io/ebpflb/coredns:test", "coredns")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
