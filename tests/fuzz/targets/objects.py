# SPDX-License-Identifier: Apache-2.0
"""Objects from the API server: all other Services are unaffected."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ebpflb.from_json import JsonError, from_json
from ebpflb.model.objects.kinds import Kind
from ebpflb.source.api_objects import Item, event_of
from tests.builders import NODE
from tests.fuzz.targets import Play, Target
from tests.odd_object import NAMES, World, odd

# The first byte of an input selects the kind.
_KINDS = list(Kind)
# Enough for entries that wait for a grace period.
_SECONDS = 5.0
_VALUES = [
    *(b"{}", b"[]", b"null", b"true", b"-1", b"1e999", b'"::"', b'"0.0.0.0/0"', b"[[[[[[[["),
    rb'"\ud800"',
]


@contextmanager
def _playing() -> Iterator[Play]:
    yield _Agent().play


class _Agent:
    """Receives odd objects, one after the other."""

    def __init__(self) -> None:
        self._world = World()
        self._others, self._counted = self._world.others(), self._world.counted()

    def play(self, given: bytes) -> None:
        """AssertionError if any other Service changes, with the object or after it."""
        if not given:
            return
        kind = _KINDS[given[0] % len(_KINDS)]
        try:
            item = event_of(b'{"type":"ADDED","object":%s}' % given[1:]).item
        except JsonError:
            return
        if _concerns_others(item):
            return
        self._world.take(kind, item, deleted=False)
        self._world.turn()
        assert self._world.others() == self._others, "with it"
        self._world.take(kind, item, deleted=True)
        self._world.turn(_SECONDS)
        assert self._world.others() == self._others, "after it"
        assert self._world.counted() == self._counted, f"{self._world.counted()} after it"


def _concerns_others(item: Item) -> bool:
    """Whether it may affect the others: their namespace, this agent's Node, their addresses."""
    names = (item.known.namespace, NAMES[0].namespace), (item.known.name, NODE)
    if any(found == other for found, other in names):
        return True
    return not item.problem and "10.96.0.9" in json.dumps(from_json(bytes(item.raw)))


def words_of(value: Any) -> Iterator[bytes]:
    """Names and values in it, as written in JSON."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield json.dumps(name).encode()
            yield from words_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from words_of(inner)
    else:
        yield json.dumps(value).encode()


# An object of each kind as the API server would send it.
_SEEDS = [
    bytes([number]) + json.dumps(odd(kind), separators=(",", ":")).encode()
    for number, kind in enumerate(_KINDS)
]
_WORDS = {word for kind in Kind for word in words_of(odd(kind))}
TARGET = Target(_SEEDS, sorted(_WORDS | set(_VALUES)), _playing)
