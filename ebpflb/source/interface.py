# SPDX-License-Identifier: Apache-2.0
"""The messages between a source and the agent: events to it, announcements back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ebpflb.model.address import Family
from ebpflb.model.objects.kinds import ApiObject, ObjectKey
from ebpflb.model.service import ServiceName

# In errors: what the API server has cannot be listed or watched.
API = "api"


class Trigger(NamedTuple):
    """When a Service's endpoints were changed, in seconds since 1970.

    None: a slice of the Service is gone, and earlier triggers no longer count.
    """

    service: ServiceName
    family: Family
    triggered: float | None


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """What changed since the previous event; the initial one has all objects.

    errors is always the complete list: a path, API or an object -> one line. Whatever has an error
    stays as it was last read. complete: every object has been read at least once, so other
    Services, left in the maps by an earlier run, can be removed. as_of: in seconds since 1970, when
    the API server had the objects that were sent, if it has not answered since the start; once it
    has, another initial event has what is different by then.
    """

    upserts: tuple[ApiObject, ...]
    removals: tuple[ObjectKey, ...]
    errors: Mapping[str | ObjectKey, str]
    initial: bool
    complete: bool = True
    triggers: tuple[Trigger, ...] = ()
    as_of: float | None = None


class Announcement(NamedTuple):
    """An Event for users. reason: one word for programs; note: a sentence for people."""

    about: ObjectKey
    reason: str
    note: str
    warning: bool = True
