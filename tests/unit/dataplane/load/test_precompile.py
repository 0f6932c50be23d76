# SPDX-License-Identifier: Apache-2.0
"""The objects compiled for an image are those that agents ask for."""

import os
import subprocess
from unittest.mock import patch

import pytest

from ebpflb.dataplane.layout.capacity import Sizes
from ebpflb.dataplane.load import compile_cache, precompile
from ebpflb.dataplane.load.bytecode import Bytecode
from ebpflb.dataplane.load.compile import arguments, compile_and_pin
from ebpflb.dataplane.load.loader import Build
from ebpflb.dataplane.load.source_text import source_text
from ebpflb.errors import ConfigError, ProbeError

COMPILED = Bytecode([], {"lb": b"code"})
VERSION = "__version__ = '0.26.0'\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """No clang, no headers to hash, and no bcc but that of the image."""
    monkeypatch.setattr(precompile, "compile_only", lambda *_: COMPILED)
    monkeypatch.setattr(compile_cache, "_headers", lambda: "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr(compile_cache, "OF_IMAGE", tmp_path / "image")
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / compile_cache.BCC_OF_IMAGE).write_text(VERSION)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})


def test_each_kernel_is_compiled_for_with_xdp_and_dsr_and_without():
    made = list(precompile.builds(["6.1", "5.10"]))
    assert len(set(made)) == len(made) == 8
    assert Build(has_set_retval=True, has_xdp=False, has_dsr=False) == made[0]


def test_an_agent_finds_it_without_bcc(tmp_path):
    directory = tmp_path / "objects"
    precompile.main(directory, ["6.1"])
    assert (directory / compile_cache.BCC_OF_IMAGE).read_text() == VERSION
    key = compile_cache.key(source_text(), arguments(Build(has_set_retval=True).defines(Sizes())))
    assert key is not None
    assert compile_cache.find(directory, key) == COMPILED
    assert len(list(directory.iterdir())) == 5


def test_a_version_of_bcc_that_is_not_known_gives_no_key(tmp_path):
    (tmp_path / "image" / compile_cache.BCC_OF_IMAGE).unlink()
    assert compile_cache.key("", []) is None


def test_a_kernel_that_is_not_known_is_named():
    with pytest.raises(ConfigError, match=r"Linux 4\.4: known are 6\.1, 5\.15, 5\.10"):
        list(precompile.builds(["4.4"]))


def test_a_slim_image_says_that_it_cannot_compile(tmp_path):
    ended = subprocess.CompletedProcess([], 3, "", "")
    with (
        patch.object(subprocess, "run", return_value=ended),
        pytest.raises(ProbeError, match="use the image that is not slim"),
    ):
        compile_and_pin("", {}, tmp_path)
