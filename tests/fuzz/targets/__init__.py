# SPDX-License-Identifier: Apache-2.0
"""Parsers of untrusted bytes: each module of this folder has one TARGET."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import NamedTuple

Play = Callable[[bytes], None]
"""Does with an input what the program would; raises anything if it does harm."""


class Target(NamedTuple):
    """seeds: initial examples. words: dictionary. playing: creates what a Play needs, and removes
    it.
    """

    seeds: Sequence[bytes]
    words: Sequence[bytes]
    playing: Callable[[], AbstractContextManager[Play]]


TARGETS = ("objects", "manifests", "settings", "selectors", "queries", "page", "agents", "api")


def check_line(message: str) -> None:
    """AssertionError unless it is one line of readable text."""
    assert message, "an empty error message"
    assert len(message.splitlines()) == 1, message


def target(name: str) -> Target:
    """The TARGET of a module."""
    found: Target = import_module(f"{__name__}.{name}").TARGET
    return found
