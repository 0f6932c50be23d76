# SPDX-License-Identifier: Apache-2.0
"""The image has what the program needs, and works with a read-only root."""

import subprocess
from pathlib import Path

import pytest

import ebpflb
from ebpflb.dataplane.kernel import libc
from ebpflb.dataplane.layout.capacity import Sizes
from ebpflb.dataplane.load.compile import compile_and_pin
from ebpflb.dataplane.load.compile_cache import find
from ebpflb.dataplane.load.precompile import builds
from ebpflb.dataplane.load.source_text import bpf_directory, source_text
from tests.image.container import Container
from tests.own import own_name

pytestmark = [pytest.mark.bpf, pytest.mark.cluster, pytest.mark.timeout(900)]


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_runs_the_program_without_any_right(root: Path, tmp_path: Path) -> None:
    done = run(Container(root, tmp_path / "bundle").command("--version"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"ebpflb, version {ebpflb.__version__}\n"


def test_it_comes_without_the_lab(root: Path, tmp_path: Path) -> None:
    done = run(Container(root, tmp_path / "bundle").command("lab", "status"))
    assert done.returncode == 1
    assert "the image does not include the lab" in done.stderr


@pytest.mark.parametrize("tool", ["iptables", "iptables-legacy", "nft", "ipset", "ipvsadm", "ip"])
def test_it_has_what_taking_over_from_kube_proxy_needs(root: Path, tool: str) -> None:
    done = run(["chroot", str(root), "sh", "-c", f'ldd "$(command -v {tool})"'])
    assert done.returncode == 0, done.stderr
    assert "not found" not in done.stdout


def test_it_has_the_c_files_of_this_checkout(root: Path) -> None:
    (packed,) = root.glob("opt/ebpflb/lib/python3*/site-packages/ebpflb/_bpf")
    files = sorted(bpf_directory().glob("*.[ch]"))
    assert files
    for path in files:
        assert (packed / path.name).read_bytes() == path.read_bytes()


def test_every_module_is_compiled_beforehand(root: Path) -> None:
    (package,) = root.glob("opt/ebpflb/lib/python3*/site-packages/ebpflb")
    modules = [path for path in package.rglob("*.py") if path.name != "__main__.py"]
    assert len(modules) > 50
    missing = [
        path
        for path in modules
        if not list((path.parent / "__pycache__").glob(f"{path.stem}.cpython-*.pyc"))
    ]
    assert not missing


def test_it_holds_no_package_lists_no_documents_and_no_compiler(root: Path) -> None:
    assert not list((root / "var/lib/apt/lists").glob("*"))
    assert not list((root / "usr/share/doc").rglob("*.gz"))
    assert (root / "usr/share/doc/libllvm14/copyright").exists()
    assert not [name for name in ("gcc", "cc", "clang", "pip", "pip3") if is_there(root, name)]


def test_its_programs_are_what_this_machine_compiles(root: Path, tmp_path: Path) -> None:
    build, *_ = builds(["6.1"])
    cache, pins = tmp_path / "cache", tmp_path / "pins"
    pins.mkdir()
    libc.mount_bpffs(pins, own_name("bpffs"))
    try:
        defines = {**build.defines(Sizes()), "LB_PIN_MAPS": f'"{pins}"'}
        compile_and_pin(source_text(), defines, pins, names=(), cache=cache)
    finally:
        libc.unmount(pins)
    (made,) = cache.iterdir()
    # Not byte by byte: another zlib compresses differently.
    packed = find(root / "opt/ebpflb/share/ebpflb", made.name)
    assert packed
    assert packed == find(cache, made.name)


def is_there(root: Path, program: str) -> bool:
    return any((root / folder / program).exists() for folder in ("usr/bin", "opt/ebpflb/bin"))
