# SPDX-License-Identifier: Apache-2.0
"""Manifest files: one error in one line, or objects that leave another Service unaffected."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from ebpflb.dataplane.services.sync import Sync
from ebpflb.errors import SourceError
from ebpflb.model.changes import Changes
from ebpflb.model.objects.kinds import key_of
from ebpflb.model.service import ServiceName
from ebpflb.source.decode import decode
from ebpflb.source.manifest import parse_manifest
from tests.builders import NODE, node_manifest, service_manifest, slice_manifest
from tests.fuzz.targets import Play, Target, check_line
from tests.fuzz.targets.objects import words_of
from tests.memory_maps import memory_maps

# The first byte of an input selects the format.
_NAMES = ("a.yaml", "a.json")
_WEB = ServiceName("prod", "web")
_OURS = [
    service_manifest("web", namespace="prod", cluster_ip="10.96.0.99"),
    slice_manifest("web-1", service="web", namespace="prod"),
]
_EXAMPLES = [service_manifest(), slice_manifest(), node_manifest(addresses=("192.0.2.9",))]
_SEEDS = [
    *(b"\1" + json.dumps(each).encode() for each in _EXAMPLES),
    *(b"\0" + yaml.safe_dump(each).encode() for each in _EXAMPLES),
    b"\1" + json.dumps({"kind": "List", "items": _EXAMPLES}).encode(),
    b"\0" + yaml.safe_dump_all(_EXAMPLES).encode(),
]
_VALUES = [
    b"---\n",
    b"- ",
    b"? ",
    b"&a ",
    b"*a",
    b"!!timestamp ",
    b"<<: ",
    b"[[[[",
    b".inf",
    b"|\n ",
]


@contextmanager
def _playing() -> Iterator[Play]:
    yield _Node().play


class _Node:
    """Reads one file after the other."""

    def __init__(self) -> None:
        self._changes = Changes(NODE)
        self._sync = Sync(memory_maps(), quiesce=lambda: None, grace=0.0)
        self._sync.load()
        for each in _OURS:
            if found := decode(each):
                self._changes.set(found)
        self._served = self._turn()

    def play(self, given: bytes) -> None:
        if not given:
            return
        try:
            content = parse_manifest(_NAMES[given[0] % len(_NAMES)], given[1:])
        except SourceError as refusal:
            check_line(str(refusal))
            return
        if any(each.name == NODE or each.namespace == _WEB.namespace for each in content.objects):
            return
        for each in content.objects.values():
            self._changes.set(each)
        served = self._turn()
        assert served == self._served or b"10.96.0.99" in given, "with it"
        for each in content.objects.values():
            self._changes.remove(key_of(each))
        assert self._turn() == self._served, "after it"
        assert self._changes.names() == {_WEB}

    def _turn(self) -> object:
        desired: Mapping[ServiceName, Any] = {
            name: self._changes.plan(name) for name in sorted(self._changes.take())
        }
        refused = self._sync.apply(desired)
        assert not refused, refused
        self._sync.collect()
        return self._changes.plan(_WEB)


TARGET = Target(
    _SEEDS, [*_VALUES, *sorted({word for each in _EXAMPLES for word in words_of(each)})], _playing
)
