# SPDX-License-Identifier: Apache-2.0
"""The agent's status for /status and metrics. Each change is logged in one line.

The loop writes it and other threads read it, so every attribute is replaced as a whole.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from ebpflb import __version__
from ebpflb.agent.writer import ServiceWriter
from ebpflb.dataplane.attach.forwarding import Forwarding
from ebpflb.dataplane.attach.links import Change
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.errors import MapError
from ebpflb.log import fields
from ebpflb.model.address import format_address
from ebpflb.model.admission.claims import Conflict
from ebpflb.model.admission.problems import (
    ADDRESS_REFUSED,
    INVALID_ANNOTATION,
    NO_LOOKUP_TABLE,
    ServiceProblem,
)
from ebpflb.model.changes import Changes, Kind, ObjectKey
from ebpflb.model.dsr import Reachability
from ebpflb.model.dsr_probe import Probes
from ebpflb.model.selection import Selection
from ebpflb.model.service import ServiceName
from ebpflb.observe.health import Health, rfc3339
from ebpflb.observe.metrics.page import PEER_STATES, Totals
from ebpflb.source.interface import Announcement

_log = logging.getLogger("ebpflb.agent")


class AgentStatus:
    def __init__(
        self,
        node: str,
        announce: Callable[[Announcement], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`announce` creates Events. `wall`: seconds since 1970."""
        self._announce = announce
        self._node = node
        self._wall = wall
        self._started = wall()
        self._as_of: float | None = None
        self._source_errors: Mapping[str, str] = {}
        self._attach_errors: Mapping[str, str] = {}
        self._health_check_errors: Mapping[str, str] = {}
        self._refused: Mapping[str, str] = {}
        self._conflicts: tuple[str, ...] = ()
        self._problems: tuple[ServiceProblem, ...] = ()
        self._totals = Totals()
        self._complete = False
        self._selectors: Mapping[str, str] = {}
        self._left_out = 0
        self._lacks: Mapping[str, str] = {}
        self._dsr_peers: Mapping[str, object] | None = None
        self._dsr_counts: Mapping[str, int] = {}

    def set_lacks(self, lacks: Mapping[str, str]) -> None:
        """The features that the kernel lacks -> what is done without them."""
        self._lacks = dict(lacks)
        for feature, instead in lacks.items():
            _log.info(
                "missing kernel feature, workaround: %s", instead, extra=fields(feature=feature)
            )

    def set_source_errors(self, errors: Mapping[str | ObjectKey, str]) -> None:
        """What cannot be read -> why."""
        old = self._source_errors
        self._source_errors = {str(place): text for place, text in errors.items()}
        for place, text in errors.items():
            if old.get(str(place)) != text:
                _log.warning("cannot read: %s", text)
                if isinstance(place, ObjectKey) and place.name:
                    note = f"node {self._node} keeps its last readable version in force: {text}"
                    self._announce(Announcement(place, "Unreadable", note))
        for file in sorted(old.keys() - self._source_errors.keys()):
            _log.info("readable again or removed", extra=fields(file=file))

    def set_as_of(self, as_of: float | None) -> None:
        """See SourceEvent."""
        old, self._as_of = self._as_of, as_of
        if as_of is not None and old is None:
            text = "the API server has not answered since the start; serving what it had then"
            _log.warning(text, extra=fields(state_of=rfc3339(as_of)))
        elif as_of is None and old is not None:
            _log.info("the API server has answered; serving what it has")

    def stale_seconds(self) -> float:
        """How old the state is that is served because the API server has not answered; or 0."""
        as_of = self._as_of
        return 0.0 if as_of is None else max(0.0, self._wall() - as_of)

    def set_attach_errors(self, errors: Mapping[str, Exception]) -> None:
        """The devices, hooks and maps that are not served -> why."""
        old, self._attach_errors = self._attach_errors, {k: str(v) for k, v in errors.items()}
        for place, text in self._attach_errors.items():
            if old.get(place) != text:
                _log.error("not served: %s", text, extra=fields(at=place))
        for place in sorted(old.keys() - errors.keys()):
            _log.info("served again or removed", extra=fields(at=place))

    def set_health_check_errors(self, errors: Mapping[ServiceName, str]) -> None:
        """The Services whose health check node port could not be opened -> why."""
        old = self._health_check_errors
        self._health_check_errors = {str(name): text for name, text in errors.items()}
        for name, text in errors.items():
            if old.get(str(name)) != text:
                note = f"node {self._node} failed to start healthcheck {name} on {text}"
                _log.warning(note)
                self._announce_service(name, "FailedToStartServiceHealthcheck", note)
        for service in sorted(old.keys() - self._health_check_errors.keys()):
            _log.info("health check answered again or removed", extra=fields(service=service))

    def set_selection(self, selection: Selection, left_out: int) -> None:
        """The selectors of the Services to serve, and how many Services they exclude."""
        if selection.is_limited and not self._selectors:
            shown = fields(
                **{key.replace("-", "_"): text for key, text in selection.options.items()}
            )
            _log.info(
                "serving selected Services only; another proxy must serve the rest", extra=shown
            )
        self._selectors, self._left_out = selection.options, left_out

    def set_dsr_peers(self, probes: Probes) -> None:
        """The nodes being asked whether they take part in DSR, once per family."""
        found = Counter(each.value for each in probes.found.values())
        self._dsr_counts = {state: found[state] for state in PEER_STATES}
        self._dsr_peers = {
            "asked": found.total(),
            "reachable": found[Reachability.REACHABLE.value],
            "unreachable": [
                {"node": peer.node, "family": f"IPv{peer.family:d}", "why": why}
                for peer, why in sorted(probes.unreachable.items())
            ],
        }

    def set_plan(self, writer: ServiceWriter, changes: Changes) -> None:
        """Take the totals of the plan, and the parts of it that are not in force."""
        conflicts = changes.conflicts()
        self._set_conflicts(conflicts)
        self._set_problems(changes.problems())
        self._set_refused(writer.refused)
        self._complete = writer.is_complete
        self._totals = Totals(
            services=writer.totals.services,
            frontends=writer.totals.frontends,
            services_refused=len(self._refused),
            services_left_out=self._left_out,
            services_misconfigured=self._count_services(INVALID_ANNOTATION),
            services_without_table=self._count_services(NO_LOOKUP_TABLE),
            addresses_refused=changes.admission.count_refused(),
            conflicts=len(conflicts),
            ejected_endpoints=writer.totals.ejected,
            no_local=dict(writer.totals.no_local),
        )

    def _set_conflicts(self, conflicts: tuple[Conflict, ...]) -> None:
        old, self._conflicts = self._conflicts, tuple(map(_describe, conflicts))
        for conflict, text in zip(conflicts, self._conflicts, strict=True):
            if text not in old:
                _log.warning(text)
                self._announce_service(conflict.loser, "FrontendConflict", text)

    def _set_problems(self, problems: tuple[ServiceProblem, ...]) -> None:
        old, self._problems = set(self._problems), problems
        for each in problems:
            if each not in old:
                _log.warning(each.text, extra=fields(service=each.service))
                self._announce_service(*each)

    def _set_refused(self, refused: Mapping[ServiceName, MapError]) -> None:
        old, self._refused = self._refused, {str(name): str(e) for name, e in refused.items()}
        for name, error in refused.items():
            if str(name) not in old:
                self._announce_service(
                    name, "DoesNotFit", f"{self._node} keeps serving its old state: {error}"
                )

    def _count_services(self, event: str) -> int:
        return len({each.service for each in self._problems if each.event == event})

    def _told(self, event: str) -> list[str]:
        return [f"{each.service}: {each.text}" for each in self._problems if each.event == event]

    def _announce_service(self, service: ServiceName, reason: str, note: str) -> None:
        self._announce(Announcement(ObjectKey(Kind.SERVICE, *service), reason, note))

    def totals(self) -> Totals:
        """The totals for /metrics."""
        return replace(
            self._totals,
            source_errors=tuple(self._source_errors),
            attach_errors=len(self._attach_errors),
            health_check_errors=len(self._health_check_errors),
            dsr_peers=self._dsr_counts,
        )

    def report(self, health: Health) -> dict[str, object]:
        """The report for /status, as JSON values."""
        last = health.last_sync
        return {
            "version": __version__,
            "node": self._node,
            "pid": os.getpid(),
            "started": rfc3339(self._started),
            "healthy": health.is_alive(),
            "in_sync": self._complete and health.is_idle(),
            "last_sync": None if last is None else rfc3339(last),
            "services": self._totals.services,
            "frontends": self._totals.frontends,
            "selectors": self._selectors,
            "services_left_out": self._left_out,
            "ejected_endpoints": self._totals.ejected_endpoints,
            "dsr_peers": self._dsr_peers,
            "kernel_lacks": self._lacks,
            "source_errors": self._source_errors,
            "unread_seconds": round(health.unread_seconds()),
            "stale_since": None if self._as_of is None else rfc3339(self._as_of),
            "attach_errors": self._attach_errors,
            "health_check_errors": self._health_check_errors,
            "refused": self._refused,
            "conflicts": list(self._conflicts),
            "misconfigured": self._told(INVALID_ANNOTATION),
            "addresses_refused": self._told(ADDRESS_REFUSED),
            "without_table": self._told(NO_LOOKUP_TABLE),
        }


def _describe(conflict: Conflict) -> str:
    address, port, protocol = conflict.key
    return (
        f"{conflict.loser} does not get {protocol.name} {format_address(address)} port {port}: "
        f"{conflict.winner} has it"
    )


def log_changes(changes: Mapping[str, Change]) -> None:
    """Log changed cgroup hooks and devices in one line; changed maps are not logged."""
    kinds: dict[Change, list[str]] = {kind: [] for kind in Change}
    for name, change in changes.items():
        if name not in MAPS:
            kinds[change].append(name)
    shown = {kind.name.lower(): ",".join(names) for kind, names in kinds.items() if names}
    if shown:
        _log.info("hooks changed", extra=fields(**shown))


def log_forwarding(chosen: Forwarding) -> None:
    is_stack = chosen.way == "stack"
    way = "routed by the kernel, through FORWARD" if is_stack else "redirected past FORWARD"
    _log.info("masqueraded packets are %s", way, extra=fields(why=chosen.why))
