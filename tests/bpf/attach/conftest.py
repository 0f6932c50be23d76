# SPDX-License-Identifier: Apache-2.0
"""A cgroup and a network for one test, removed afterwards."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebpflb.dataplane.attach.links import LoadedProgram
from ebpflb.lab.namespaces import detach
from tests.bpf.attach import tiny
from tests.bpf.attach.network import Network


@pytest.fixture
def network() -> Iterator[Network]:
    """The test's thread is in the network's first namespace, which has only `lo`."""
    with contextlib.ExitStack() as stack:
        yield Network(stack)


@pytest.fixture
def unmounted(tmp_path: Path) -> Iterator[Path]:
    """A directory that does not exist yet, and is not left mounted afterwards."""
    path = tmp_path / "a" / "b"
    yield path
    detach(path)


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
    """Ends the chain of programs, unlike one that returns NEXT."""
    program = tiny.load(tiny.PASS)
    yield program
    program.close()
