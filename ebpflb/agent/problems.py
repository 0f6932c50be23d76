# SPDX-License-Identifier: Apache-2.0
"""What is wrong, by kind: logged and told once, reported while it lasts.

A new kind of problem is one ProblemKind here, and a call of `Problems.set()`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ebpflb.log import fields
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.model.service import ServiceName
from ebpflb.source.interface import Announcement
from ebpflb.words.events import EventReason

_log = logging.getLogger("ebpflb.agent")

# A file, device, hook or map; an object; or a Service.
Place = str | ObjectKey | ServiceName


class ProblemKind(NamedTuple):
    """How a problem is told, with `{node}`, `{place}` and `{text}`, and what is not told is empty.

    log: a line of this level, with the place in `field`; mended: one of level INFO once nothing is
    wrong with the place any more. event: the reason of an Event about the object, whose text is
    `note`.
    """

    log: str = ""
    level: int = logging.WARNING
    field: str = ""
    mended: str = ""
    event: EventReason | None = None
    note: str = "{text}"


SOURCE = ProblemKind(
    log="cannot read: {text}",
    mended="readable again or removed",
    field="file",
    event=EventReason.UNREADABLE,
    note="node {node} keeps its last readable version in force: {text}",
)
ATTACH = ProblemKind(
    log="not served: {text}",
    level=logging.ERROR,
    field="at",
    mended="served again or removed",
)
HEALTH_CHECK = ProblemKind(
    log="node {node} failed to start healthcheck {place} on {text}",
    field="service",
    mended="health check answered again or removed",
    event=EventReason.HEALTH_CHECK_NODE_PORT,
    note="node {node} failed to start healthcheck {place} on {text}",
)
REFUSED = ProblemKind(
    event=EventReason.DOES_NOT_FIT, note="{node} keeps serving its old state: {text}"
)
CONFLICT = ProblemKind(log="{text}", field="service", event=EventReason.FRONTEND_CONFLICT)
MISCONFIGURED = ProblemKind(log="{text}", field="service", event=EventReason.INVALID_ANNOTATION)
ADDRESS = ProblemKind(log="{text}", field="service", event=EventReason.ADDRESS_REFUSED)
WITHOUT_TABLE = ProblemKind(log="{text}", field="service", event=EventReason.NO_LOOKUP_TABLE)

ON_BACKUP = ProblemKind(
    log="{text}",
    field="service",
    mended="on its own endpoints alone again",
    event=EventReason.ON_BACKUP,
    note="on {node}, {text}",
)


class Problems:
    """For the loop; other threads may read."""

    def __init__(self, node: str, announce: Callable[[Announcement], None]) -> None:
        """`announce` creates Events."""
        self._node = node
        self._announce = announce
        self._present: Mapping[ProblemKind, tuple[tuple[Place, str], ...]] = {}

    def set(self, kind: ProblemKind, problems: Iterable[tuple[Place, str]]) -> None:
        """What is wrong now, of this kind: place and text."""
        old, new = self._present.get(kind, ()), tuple(problems)
        self._present = {**self._present, kind: new}
        known = set(old)
        for each in new:
            if each not in known:
                self._tell(kind, *each)
        if kind.mended:
            gone = {str(place) for place, _ in old} - {str(place) for place, _ in new}
            for name in sorted(gone):
                _log.info(kind.mended, extra=fields(**{kind.field: name}))

    def _tell(self, kind: ProblemKind, place: Place, text: str) -> None:
        words = {"node": self._node, "place": place, "text": text}
        if kind.log:
            extra = fields(**{kind.field: str(place)}) if kind.field else None
            _log.log(kind.level, "%s", kind.log.format(**words), extra=extra)
        about = ObjectKey(Kind.SERVICE, *place) if isinstance(place, ServiceName) else place
        if kind.event and isinstance(about, ObjectKey) and about.name:
            self._announce(Announcement(about, kind.event, kind.note.format(**words)))

    def by_place(self, kind: ProblemKind) -> dict[str, str]:
        """The texts, where each place has one."""
        return {str(place): text for place, text in self._present.get(kind, ())}

    def texts(self, kind: ProblemKind) -> list[str]:
        """The texts alone."""
        return [text for _, text in self._present.get(kind, ())]

    def lines(self, kind: ProblemKind) -> list[str]:
        """Place and text of each."""
        return [f"{place}: {text}" for place, text in self._present.get(kind, ())]

    def places(self, kind: ProblemKind) -> frozenset[str]:
        """Where something is wrong."""
        return frozenset(str(place) for place, _ in self._present.get(kind, ()))
