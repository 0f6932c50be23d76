# SPDX-License-Identifier: Apache-2.0
"""What passes between a source and the agent: events come, announcements go."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ebpflb.model.address import Family
from ebpflb.model.changes import ApiObject, ObjectKey
from ebpflb.model.service import ServiceName


class Trigger(NamedTuple):
    """A Service's endpoints changed because of something that happened at a time, in s since 1970.

    Without a time the Service's slice is gone: what is remembered of it no longer counts.
    """

    service: ServiceName
    family: Family
    triggered: float | None


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """What changed since the event before; the first one (initial) carries everything.

    errors is always the complete list: what is concerned (a path, a resource, an object) -> one
    line. What has an error is as it was read last. complete: everything that is wanted was read at
    least once, so what an earlier run left over and nobody named is not wanted any more.
    """

    upserts: tuple[ApiObject, ...]
    removals: tuple[ObjectKey, ...]
    errors: Mapping[str, str]
    initial: bool
    complete: bool = True
    triggers: tuple[Trigger, ...] = ()


class Announcement(NamedTuple):
    """reason: one word for programs; note: a sentence for people."""

    about: ObjectKey
    reason: str
    note: str
    warning: bool = True
