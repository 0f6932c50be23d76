# SPDX-License-Identifier: Apache-2.0
"""Builds the image with buildah, without a registry: debootstrap makes its base.

Everything is in a cache outside the tree: buildah's storage, and an archive for each recently
tested source tree, so that checkouts can be tested concurrently. Python packages come from pip's
configured index.
"""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path

from tests.cluster.harness.binaries import locked

_REPOSITORY = "docker.io/library/ebpflb"
_BASE = "localhost/debian:bookworm-minbase"
# Stages of the Dockerfile that seldom change.
_STAGES = ("base", "dependencies")
_CHECKOUT = Path(__file__).resolve().parents[2]
_INGREDIENTS = (
    *("Dockerfile", ".dockerignore", ".ci/image_packages", ".ci/locks", ".ci/no_maps.c"),
    *("pyproject.toml", "ebpflb", "bpf"),
)
# Of the targets that the image has compiled objects for, those that tests can load.
_KERNELS = "6.1"
# How long an unused archive and its image are kept.
_KEPT_SECONDS = 24 * 3600
# Prefix of the tests' working containers, before the process id. All others belong to builds.
_OF_TEST = "test"
_numbers = count(1)
_SETTING = re.compile(r"(global|install|download|:env:)\.([a-z-]+)=('.*')")
# Folders whose files a slim image leaves out.
_NOT_SLIM = (
    *("var/cache", "var/lib/apt/lists", "var/log"),
    *(f"usr/share/{name}" for name in ("info", "locale", "man")),
)
# Settings of where packages come from; those of where they are installed do not apply in a build.
_PIP_SETTINGS = {
    *("index-url", "extra-index-url", "find-links", "no-index", "trusted-host"),
    *("cert", "client-cert", "proxy", "timeout", "default-timeout", "retries"),
}


def image_name() -> str:
    """The name of this checkout's image, with its own tag."""
    return f"{_REPOSITORY}:{_digest()}"


def image_archive() -> Path:
    """An OCI archive of the image, for `ctr -n k8s.io images import`; built if it does not exist
    yet.

    The first time takes minutes, later ones seconds. CalledProcessError if buildah fails, whose
    output has been shown.
    """
    archive = _archives() / f"{_digest()}.tar"
    if not archive.exists():
        with locked(_cache() / "lock"):
            if not archive.exists():
                _build(archive)
    os.utime(archive)
    return archive


@contextmanager
def working_container() -> Iterator[tuple[str, Path]]:
    """A container of the image with its files, mounted, for as long as this process lives at
    most.
    """
    name = f"{_OF_TEST}-{os.getpid()}-{next(_numbers)}"
    container = buildah("from", "--pull-never", f"--name={name}", image_name())
    try:
        yield container, Path(buildah("mount", container))
    finally:
        buildah("rm", container)


def buildah(*arguments: str) -> str:
    """Run buildah on the cached storage, and return its output."""
    ran = subprocess.run(_command(*arguments), check=True, stdout=subprocess.PIPE, text=True)
    return ran.stdout.strip()


def _command(*arguments: str) -> list[str]:
    storage = _cache() / "storage"
    places = [f"--root={storage}/root", f"--runroot={storage}/run", "--storage-driver=overlay"]
    return ["buildah", *places, *arguments]


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "ebpflb" / "image"


def _archives() -> Path:
    return _cache() / "archives"


@cache
def _digest() -> str:
    digest = hashlib.sha256()
    for name in _INGREDIENTS:
        top = _CHECKOUT / name
        for path in sorted(top.rglob("*") if top.is_dir() else [top]):
            if path.is_file() and "__pycache__" not in path.parts:
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(_CHECKOUT)} {content}\n".encode())
    return digest.hexdigest()[:16]


def _build(archive: Path) -> None:
    for line in remove_working_containers(of_builds=True):
        print(line, file=sys.stderr)
    _ensure_base()
    options = ["--isolation=chroot", "--layers", f"--build-arg=BASE_IMAGE={_BASE}"]
    options += [f"--build-arg=KERNELS={_KERNELS}"]
    # Stages are named too, or their downloads would be repeated each time.
    stages = [[f"--target={each}", f"--tag=localhost/ebpflb:{each}"] for each in _STAGES]
    for stage in (*stages, [f"--tag={image_name()}"]):
        command = _command("build", *options, *_pip_volumes(), *stage, str(_CHECKOUT))
        subprocess.run(command, check=True, stdout=sys.stderr)
    write_archive(image_name(), archive)
    _remove_old()


def write_archive(image: str, archive: Path) -> None:
    """Write an image to an archive atomically."""
    archive.parent.mkdir(exist_ok=True)
    unfinished = archive.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    buildah("push", "--disable-compression", image, f"oci-archive:{unfinished}:{image}")
    unfinished.rename(archive)


def _remove_old() -> None:
    """Remove archives that have not been used lately, and images without an archive."""
    long_ago = time.time() - _KEPT_SECONDS
    for each in _archives().glob("*.tar"):
        if each.stat().st_mtime < long_ago:
            each.unlink()
    kept = {each.stem for each in _archives().glob("*.tar")}
    ours = [each for each in _images() if each.startswith(f"{_REPOSITORY}:")]
    old = [each for each in ours if each.rpartition(":")[2].partition("-")[0] not in kept]
    # Images that a container still uses are removed the next time.
    for what in (*old, "--prune"):
        subprocess.run(_command("rmi", what), check=False, capture_output=True)


def _images() -> list[str]:
    return buildah("images", "--format={{.Name}}:{{.Tag}}").splitlines()


def remove_working_containers(*, of_builds: bool = False) -> Iterator[str]:
    """Remove the containers of killed tests, with a line for each.

    of_builds: also those of builds, because the lock shows that none is running.
    """
    if not (_cache() / "storage").exists() or not shutil.which("buildah"):
        return
    try:
        listed = buildah("containers", "--json")
    except subprocess.CalledProcessError:
        # buildah has reported it. On read-only storage, as in a virtual machine, nothing is
        # removed.
        return
    for each in json.loads(listed) or ():
        name = each["containername"]
        of, _, rest = name.partition("-")
        is_alive = Path("/proc", rest.partition("-")[0]).exists()
        if not is_alive if of == _OF_TEST else of_builds:
            buildah("rm", each["id"])
            yield f"working container {name} of buildah: removed"


def _ensure_base() -> None:
    """The equivalent of debian:bookworm-slim, from Debian's archive instead of a registry."""
    if _BASE in _images():
        return
    container = buildah("from", "scratch")
    try:
        root = buildah("mount", container)
        command = ["debootstrap", "--variant=minbase", "bookworm", root]
        subprocess.run(command, check=True, stdout=sys.stderr)
        for folder in _NOT_SLIM:
            subprocess.run(["find", f"{root}/{folder}", "-type", "f", "-delete"], check=True)
        buildah("commit", container, _BASE)
    finally:
        buildah("rm", container)


def _pip_volumes() -> list[str]:
    """Mounts that give pip in a build this machine's package index."""
    settings = _pip_settings()
    mounted = {str(_cache() / "pip.conf"): "/etc/pip.conf"}
    for key in ("cert", "client-cert", "find-links"):
        for path in settings.get(key, "").split():
            if Path(path).exists():
                mounted[path] = f"/mnt/pip/{len(mounted)}"
                settings[key] = settings[key].replace(path, mounted[path])
    lines = [f"{key} = {value}\n" for key, value in settings.items()]
    (_cache() / "pip.conf").write_text("".join(["[global]\n", *lines]))
    return [f"--volume={source}:{target}:ro" for source, target in mounted.items()]


def _pip_settings() -> dict[str, str]:
    """pip's settings here, from files and from the environment, which has precedence."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = sorted(_SETTING.findall(listed), key=lambda setting: setting[0] == ":env:")
    return {key: ast.literal_eval(text) for _, key, text in found if key in _PIP_SETTINGS}
