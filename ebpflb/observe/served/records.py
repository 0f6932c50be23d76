# SPDX-License-Identifier: Apache-2.0
"""The lines of a file of what was served, in JSON."""

from typing import Any

from msgspec import Raw, Struct
from msgspec.json import Decoder, encode

from ebpflb.model.ejection import EjectionChange
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey
from ebpflb.source import encode as objects

ServedChange = ApiObject | ObjectKey | EjectionChange
"""What is new or different, what is gone, and an endpoint that was ejected or is back."""


class ServedRecord(Struct, frozen=True):
    """One of the last three is given, or lost_since, or nothing: the first part of a file ends.

    time: since when it is in force, as the time of a Flow. lost_since: changes from then on until
    `time` are missing. object: with the fields that decode() reads. removed: an ObjectKey.
    """

    time: str
    lost_since: str = ""
    object: Raw = Raw()
    removed: tuple[Kind, str, str] | None = None
    ejection: EjectionChange | None = None


class _Metadata(Struct):
    name: str


class _Object(Struct):
    metadata: _Metadata


class _NamedRecord(Struct):
    object: _Object | None = None


_decode = Decoder(ServedRecord).decode
_decode_name = Decoder(_NamedRecord).decode


def read_record(line: bytes) -> ServedRecord:
    """ValueError."""
    return _decode(line)


def read_name(line: bytes) -> str:
    """That of the object on a line, "" without one; quicker than read_record(). ValueError."""
    found = _decode_name(line).object
    return found.metadata.name if found else ""


def line_of(time: str, change: ServedChange) -> bytes:
    if isinstance(change, ObjectKey):
        return _line(time, removed=change)
    if isinstance(change, EjectionChange):
        return _line(time, ejection=change)
    return _line(time, object=objects.encode(change))


def line_of_end(time: str) -> bytes:
    return _line(time)


def line_of_loss(time: str, lost_since: str) -> bytes:
    return _line(time, lost_since=lost_since)


def _line(time: str, **rest: Any) -> bytes:
    return encode({"time": time, **rest}) + b"\n"
