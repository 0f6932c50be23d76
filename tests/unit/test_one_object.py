# SPDX-License-Identifier: Apache-2.0
"""Whatever one object contains, from the API server's bytes to the maps: all other Services are
served, changed, explained and counted as without it.
"""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebpflb.model.objects.kinds import Kind
from tests.odd_object import World, odd

# In place of a field's value. All but the last few can be in managedFields of a real object.
DEEP = b'{"f:a":' * 9990 + b"{}" + b"}" * 9990
HOSTILE = [
    *(DEEP, b"[" * 9990 + b"]" * 9990, b'{"f:\xff\xfe":{}}', b'"\xff\xfe"', b'"\\ud800"'),
    *(b"9" * 5000, b"-1", b"1e999", b"65536", b"18446744073709551616", b"0.5", b"80"),
    *(b"null", b"true", b"{}", b"[]", b"[null]", b"[{}]", b"[[]]", b'{"":{}}', b'""'),
    *(b'"' + b"x" * 262_144 + b'"', b'"\\u0000\\n\\u001b[2J"', b'"\xf0\x9f\x98\x80"', b'"::"'),
    *(b'"0.0.0.0"', b'"127.0.0.1"', b'"::ffff:10.0.0.1"', b'"0.0.0.0/0"', b'"::/0"', b'"9999"'),
    *(b"NaN", b"", b'"\\q"', b'"\x01"', b"[1 2]"),
]


class Change(NamedTuple):
    """The value at a path of an object of that kind becomes these bytes."""

    kind: Kind
    path: tuple[str | int, ...]
    value: bytes

    def made(self) -> bytes:
        """The object."""
        document = odd(self.kind)
        inside: Any = document
        for step in self.path[:-1]:
            inside = inside[step]
        inside[self.path[-1]] = "@@"
        return json.dumps(document).encode().replace(b'"@@"', self.value)


def paths(value: Any) -> Iterator[tuple[str | int, ...]]:
    """Of all fields within."""
    entries: Any = ()
    if isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
    for step, inner in entries:
        yield (step,)
        yield from ((step, *rest) for rest in paths(inner))


def as_string(raw: bytes) -> bytes:
    return b'"%s"' % raw.translate(None, b'"\\')


PATHS = [(kind, path) for kind in Kind for path in paths(odd(kind))]
CHANGES = st.builds(
    lambda place, value: Change(place[0], place[1], value),
    st.sampled_from(PATHS),
    st.sampled_from(HOSTILE) | st.binary(max_size=8).map(as_string),
)


class Seen(NamedTuple):
    """At three moments: all listed, a change of the others, and the odd object deleted."""

    first: object
    moved: object
    last: object
    counted: object


def seen(change: Change, *, listed: bool) -> Seen:
    """With the object, which the others' change follows at once."""
    raw = change.made()
    world = World(change.kind, raw if listed else b"")
    if not listed:
        world.send(change.kind, "ADDED", raw)
        world.turn()
    first = world.others()
    world.send(change.kind, "MODIFIED", raw)
    world.move()
    world.turn()
    moved = world.others()
    world.send(change.kind, "DELETED", raw)
    world.turn()
    return Seen(first, moved, world.others(), world.counted())


@cache
def without() -> Seen:
    world = World()
    first = world.others()
    world.move()
    world.turn()
    return Seen(first, world.others(), world.others(), world.counted())


@settings(max_examples=200)
@given(CHANGES, st.booleans())
@example(Change(Kind.SERVICE, ("metadata", "managedFields"), DEEP), True)
@example(Change(Kind.POD, ("metadata", "managedFields"), b'{"f:\xff\xfe":{}}'), False)
@example(Change(Kind.NODE, ("status", "addresses"), b"9" * 5000), False)
def test_whatever_one_object_holds_all_others_are_served_as_without_it(
    change: Change, listed: bool
):
    assert seen(change, listed=listed) == without()
