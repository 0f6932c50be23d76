# SPDX-License-Identifier: Apache-2.0
"""The programs compile and load with the bcc of Debian 13 (0.31, LLVM 19) as with Debian 12's.

So do the cached objects.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ebpflb" / "debian13"
_CHECKOUT = Path(__file__).resolve().parents[3]
_SCRIPT = """
from pathlib import Path
from ebpflb.dataplane.load.bytecode import load_and_pin
from ebpflb.dataplane.load.compile import STRICT, compile_and_pin
from ebpflb.dataplane.load.compile_cache import DIRECTORY, find
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.load.source_text import source_text
import bcc
pins = Path("/sys/fs/bpf")
for name in ("m", "p", "kept-m", "kept-p"):
    (pins / name).mkdir()
compile_and_pin(source_text(), {"LB_PIN_MAPS": '"/sys/fs/bpf/m"'}, pins / "p", flags=STRICT)
(kept,) = DIRECTORY.iterdir()
load_and_pin(find(DIRECTORY, kept.name), pins / "kept-m", pins / "kept-p", PROGRAMS)
print(bcc.__version__, *sorted(path.name for path in (pins / "p").iterdir()))
"""


@pytest.fixture(scope="module")
def debian13() -> Path:
    """A root file system with bcc, built once into a cache (half a minute)."""
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    with _CACHE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (_CACHE / "usr/bin/python3").exists():
            _build()
    return _CACHE


def _build() -> None:
    building = _CACHE.with_suffix(".new")
    shutil.rmtree(building, ignore_errors=True)
    include = "--include=python3-bpfcc"
    command = ["debootstrap", "--variant=minbase", include, "trixie", str(building)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    building.rename(_CACHE)


@pytest.fixture
def checkout(debian13: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of that root on an overlay, with this checkout and a temporary bpffs."""
    (tmp_path / "upper").mkdir()
    (tmp_path / "work").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    layers = f"lowerdir={debian13},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, root], check=True)
    try:
        for part in ("bpf", "ebpflb"):
            shutil.copytree(_CHECKOUT / part, root / "src" / part)
        (root / "sys/fs/bpf").mkdir(parents=True)
        subprocess.run(["mount", "-t", "bpf", "bpf", root / "sys/fs/bpf"], check=True)
        yield root
    finally:
        subprocess.run(["umount", root / "sys/fs/bpf"], check=False)
        subprocess.run(["umount", root], check=True)


@pytest.mark.timeout(600)
def test_compiles_and_loads_with_the_bcc_of_debian_13(checkout: Path) -> None:
    command = ["chroot", str(checkout), "python3", "-c", _SCRIPT]
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": "/src"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    version, *programs = run.stdout.split()
    assert version.startswith("0.3")
    assert "lb_connect4" in programs
    assert "lb_host_ingress" in programs
