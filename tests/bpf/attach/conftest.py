# SPDX-License-Identifier: Apache-2.0
"""A bpffs, a cgroup and a network of the test's own; all are gone afterwards."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebpflb.dataplane import libc
from ebpflb.dataplane.links import LoadedProgram
from tests.bpf.attach import tiny
from tests.bpf.attach.network import Network, run


@pytest.fixture
def network() -> Iterator[Network]:
    """The test's thread is in its first namespace, which has only `lo`."""
    with contextlib.ExitStack() as stack:
        yield Network(stack)


@pytest.fixture
def bpffs(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "bpffs"
    path.mkdir()
    libc.mount_bpffs(path, "ebpflb-test")
    yield path
    run("umount", "--lazy", str(path))


@pytest.fixture
def unmounted(tmp_path: Path) -> Iterator[Path]:
    """A directory that need not be there, and is no mount afterwards."""
    path = tmp_path / "a" / "b"
    yield path
    if path.is_mount():
        run("umount", "--lazy", str(path))


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with tiny.own_cgroup("a") as path:
        yield path


@pytest.fixture
def drop() -> Iterator[LoadedProgram]:
    program = tiny.load(tiny.DROP)
    yield program
    program.close()


@pytest.fixture
def accept() -> Iterator[LoadedProgram]:
    """Ends the row of programs, unlike one that returns NEXT."""
    program = tiny.load(tiny.PASS)
    yield program
    program.close()
