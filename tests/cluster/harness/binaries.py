# SPDX-License-Identifier: Apache-2.0
"""The programs of a cluster, built from released sources with go on first use, and cached.

The cache is outside the tree and also keeps the recipe of each program: a new version or build
command makes a new program. `python -m tests.cluster build` builds all of them.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ebpflb.errors import CompileError, ProbeError

KUBERNETES_VERSION = "1.36.3"
HELM_VERSION = "3.22.0"
COREDNS_VERSION = "1.12.4"

_SOURCES = Path(__file__).parents[1] / "go"
_EVERY_SECONDS = 5.0
_LONGEST_ERROR = 600
_DOWNLOAD = "go: downloading "
_VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build one program. module: a folder of `go/` with the sources or their versions.

    Without a module, `package` names its own version and comes with its own go.mod.
    cgo: it contains C, which needs gcc; it runs on this machine, but not in an empty image.
    tests: it is the tests of the package.
    """

    package: str
    module: str = ""
    flags: tuple[str, ...] = ()
    cgo: bool = False
    tests: bool = False

    def arguments(self, target: Path) -> list[str]:
        """The arguments of go; the program is written to `target` or into its folder."""
        flags = ["-v", "-trimpath", "-buildvcs=false", *self.flags]
        if self.module:
            command = ["test", "-c"] if self.tests else ["build"]
            return [*command, "-mod=readonly", *flags, "-o", str(target), self.package]
        return ["install", *flags, self.package]

    def environment(self) -> dict[str, str]:
        """The environment of go."""
        return {"CGO_ENABLED": "1" if self.cgo else "0"}

    def text(self) -> str:
        """Changes whenever the resulting program would."""
        lines = [
            self.package,
            *self.flags,
            *(["cgo"] if self.cgo else []),
            *(["tests"] if self.tests else []),
        ]
        if self.module:
            for path in sorted((_SOURCES / self.module).iterdir()):
                lines.append(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}")
        return "\n".join(lines) + "\n"


def _kubernetes(name: str) -> Recipe:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    facts = {"gitVersion": f"v{KUBERNETES_VERSION}", "gitMajor": major, "gitMinor": minor}
    settings = " ".join(f"-X {_VERSION_PACKAGE}.{key}={value}" for key, value in facts.items())
    flags = ("-ldflags", f"-s -w {settings}")
    return Recipe(f"k8s.io/kubernetes/cmd/{name}", "kubernetes", flags)


# In the order in which other steps need them.
RECIPES: dict[str, Recipe] = {
    "kube-apiserver": _kubernetes("kube-apiserver"),
    "kubectl": _kubernetes("kubectl"),
    "kube-controller-manager": _kubernetes("kube-controller-manager"),
    "kube-scheduler": _kubernetes("kube-scheduler"),
    "kubelet": _kubernetes("kubelet"),
    "echo": Recipe(".", "echo", ("-ldflags", "-s -w")),
    "helm": Recipe(f"helm.sh/helm/v3/cmd/helm@v{HELM_VERSION}", flags=("-ldflags", "-s -w")),
    "kube-proxy": _kubernetes("kube-proxy"),
    "coredns": Recipe(
        f"github.com/coredns/coredns@v{COREDNS_VERSION}", flags=("-ldflags", "-s -w")
    ),
}


def cache() -> Path:
    """The folder of everything built for clusters of this version."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "ebpflb" / f"cluster-{KUBERNETES_VERSION}"


def folder() -> Path:
    """The folder of the programs, for a PATH."""
    return cache() / "bin"


def binary(name: str, say: Callable[[str], None] = lambda _: None) -> Path:
    """A program of RECIPES, as built()."""
    return built(name, RECIPES[name], say)


def built(name: str, recipe: Recipe, say: Callable[[str], None] = lambda _: None) -> Path:
    """A program, built now if it does not exist yet, which can take minutes.

    name: of the file; without a module go derives it from the last part of the package.
    say: is called every few seconds during a build. ProbeError if go is missing, CompileError with
    go's last lines if the build fails.
    """
    path = folder() / name
    if not is_built(name, recipe):
        with locked(cache() / "lock"):
            if not is_built(name, recipe):
                _build(path, recipe, say)
    return path


def is_built(name: str, recipe: Recipe) -> bool:
    """Whether built() has nothing to do."""
    path = folder() / name
    try:
        return path.exists() and _recipe_file(path).read_text() == recipe.text()
    except FileNotFoundError:
        return False


def module_folder(module: str, path: str) -> Path:
    """The folder of a Go module's sources, as required by the go.mod of a folder of `go/`."""
    command = ["mod", "download", "-json", path]
    ran = subprocess.run(
        [_go(), *command], cwd=_SOURCES / module, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise CompileError(f"go has no sources of {path}: {ran.stdout[-_LONGEST_ERROR:]}")
    return Path(json.loads(ran.stdout)["Dir"])


def build_all(names: list[str], say: Callable[[str], None]) -> None:
    """Build what is missing, one after the other, and report progress and times."""
    wanted = names or list(RECIPES)
    for number, name in enumerate(wanted, start=1):
        started = time.monotonic()
        path = binary(name, partial(_say_numbered, say, f"{number}/{len(wanted)}"))
        megabytes = path.stat().st_size / 1e6
        say(f"{name:<24} {time.monotonic() - started:6.1f} s  {megabytes:6.1f} MB  {path}")


def _say_numbered(say: Callable[[str], None], number: str, text: str) -> None:
    say(f"{number} {text}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock file is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _recipe_file(path: Path) -> Path:
    return path.parent.parent / "recipes" / path.name


def _build(path: Path, recipe: Recipe, say: Callable[[str], None]) -> None:
    go = _go()
    path.parent.mkdir(exist_ok=True)
    note = _recipe_file(path)
    note.parent.mkdir(exist_ok=True)
    for interrupted in path.parent.glob(".build-*"):
        shutil.rmtree(interrupted)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as place:
        unfinished, log = Path(place) / path.name, Path(place) / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["nice", go, *recipe.arguments(unfinished)],
                cwd=_SOURCES / recipe.module,
                env=os.environ | {"GOBIN": place, "GOFLAGS": ""} | recipe.environment(),
                stdin=subprocess.DEVNULL,
                stderr=output,
            )
        if _follow(process, log, lambda text: say(f"{path.name}: {text}")):
            last = "; ".join(line for line in log.read_text().splitlines() if not _is_done(line))
            raise CompileError(f"go cannot build {path.name}: {last[-_LONGEST_ERROR:]}")
        note.unlink(missing_ok=True)
        unfinished.replace(path)
    note.write_text(recipe.text())


def _go() -> str:
    # Installed by pip for the tests; Debian's is too old.
    go = shutil.which("go", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if go is None:
        raise ProbeError(
            "programs of the cluster are built with go, which is not on the PATH: install Go 1.26"
        )
    return go


def _follow(process: "subprocess.Popen[bytes]", log: Path, say: Callable[[str], None]) -> int:
    """Report go's progress every few seconds; returns its exit status."""
    started = time.monotonic()
    while True:
        try:
            return process.wait(_EVERY_SECONDS)
        except subprocess.TimeoutExpired:
            lines = log.read_text().splitlines()
            count = sum(not line.startswith(_DOWNLOAD) for line in lines if _is_done(line))
            last = lines[-1] if lines else "begins"
            say(f"{time.monotonic() - started:4.0f} s, {count} packages, {last}")


def _is_done(line: str) -> bool:
    """Whether a line of -v names a fetched module or a compiled package."""
    return line.startswith(_DOWNLOAD) or " " not in line
