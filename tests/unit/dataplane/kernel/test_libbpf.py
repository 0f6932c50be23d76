# SPDX-License-Identifier: Apache-2.0
"""Errors of the binding; what it does is tested on real objects in tests/bpf."""

import ctypes
from collections.abc import Callable
from errno import EINTR, EPERM
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel import libbpf
from ebpflb.errors import ProbeError

Answers = Callable[..., list[str]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Let libbpf return these numbers, one per call; gives the list of calls."""

    def install(*results: int) -> list[str]:
        left, calls = list(results), list[str]()

        def function(name: str) -> Callable[..., int]:
            calls.append(name)
            return lambda *_: left.pop(0)

        monkeypatch.setattr(libbpf, "_function", function)
        return calls

    return install


def test_an_interrupted_call_is_made_again(answers: Answers):
    calls = answers(-EINTR, -EINTR, 7)
    assert libbpf.obj_get(Path("/pin")) == 7
    assert calls == ["bpf_obj_get"] * 3


def test_an_interrupted_batch_is_made_again_as_a_whole(answers: Answers):
    answers(-EINTR, 0)
    assert libbpf.map_update_batch(3, b"", b"", 5) == 5


def test_an_error_names_call_errno_and_path(answers: Answers):
    answers(-EPERM)
    with pytest.raises(PermissionError, match="bpf_obj_get: Operation not permitted") as error:
        libbpf.obj_get(Path("/pin"))
    assert error.value.filename == "/pin"
    answers(-EPERM)
    with pytest.raises(PermissionError, match="bpf_map_update_batch"):
        libbpf.map_update_batch(3, b"", b"", 5)


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError("libbpf.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    libbpf._library.cache_clear()
    with pytest.raises(ProbeError, match="install the package libbpf1"):
        libbpf._library()
