# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz.coverage FLAGS...`: what libFuzzer makes of odd objects does no harm.

The flags are libFuzzer's: https://llvm.org/docs/LibFuzzer.html#options
"""

import json
import logging
import sys

import atheris

with atheris.instrument_imports(include=["ebpflb.from_json", "ebpflb.source", "ebpflb.model"]):
    from ebpflb.from_json import JsonError
    from ebpflb.model.changes import Kind
    from ebpflb.source.api_objects import Item, event_of, known_of
    from ebpflb.source.fields import metadata_of
    from tests.builders import NODE
    from tests.odd_object import NAMES, World

# The first byte of an input is the kind.
_KINDS = list(Kind)
# Enough for entries that wait for a grace period.
_SECONDS = 5.0


class Player:
    """Gives one agent odd objects, one after the other."""

    def __init__(self) -> None:
        self._world = World()
        self._others, self._counted = self._world.others(), self._world.counted()

    def play(self, given: bytes) -> None:
        """AssertionError unless all others stay as they are, with the object and after it."""
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
    """Whether it may make a difference to them: their namespace, the own Node, their addresses."""
    metadata = metadata_of(known_of(item))
    names = (metadata.namespace, NAMES[0].namespace), (metadata.name, NODE)
    return any(found == other for found, other in names) or "10.96.0.9" in json.dumps(item)


def main() -> None:
    logging.disable()
    atheris.Setup(sys.argv, Player().play)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
