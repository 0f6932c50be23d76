# SPDX-License-Identifier: Apache-2.0
"""The agent's status for /status and metrics, with its problems. Each change is logged in one line.

The loop writes it and other threads read it, so every attribute is replaced as a whole.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from msgspec import structs

from ebpflb import __version__
from ebpflb.agent.problems import (
    ADDRESS,
    ATTACH,
    CONFLICT,
    HEALTH_CHECK,
    MISCONFIGURED,
    ON_BACKUP,
    REFUSED,
    SOURCE,
    WITHOUT_TABLE,
    Problems,
)
from ebpflb.agent.writer import ServiceWriter
from ebpflb.dataplane.attach.forwarding import Forwarding
from ebpflb.dataplane.attach.links import Change
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.log import fields
from ebpflb.model.address import format_address
from ebpflb.model.admission.claims import Conflict
from ebpflb.model.agent_report import AgentReport, DsrPeers, NetworkReport, UnreachableNode
from ebpflb.model.backup.told import why_used
from ebpflb.model.changes import Changes
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
        self.problems = Problems(node, announce)
        self._node = node
        self._wall = wall
        self._started = wall()
        self._as_of: float | None = None
        self._totals = Totals()
        self._complete = False
        self._selectors: Mapping[str, str] = {}
        self._left_out = 0
        self._lacks: Mapping[str, str] = {}
        self._dsr_peers: DsrPeers | None = None
        self._dsr_counts: Mapping[str, int] = {}

    def set_lacks(self, lacks: Mapping[str, str]) -> None:
        """The features that the kernel lacks -> what is done without them."""
        self._lacks = dict(lacks)
        for feature, instead in lacks.items():
            _log.info(
                "missing kernel feature, workaround: %s", instead, extra=fields(feature=feature)
            )

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
        self._dsr_peers = DsrPeers(
            found.total(),
            found[Reachability.REACHABLE.value],
            [
                UnreachableNode(peer.node, peer.family.text, why)
                for peer, why in sorted(probes.unreachable.items())
            ],
        )

    def set_plan(self, writer: ServiceWriter, changes: Changes) -> None:
        """Take the totals of the plan, and the parts of it that are not in force."""
        problems, found = self.problems, changes.problems()
        problems.set(CONFLICT, [(each.loser, _describe(each)) for each in changes.conflicts()])
        for kind in (MISCONFIGURED, ADDRESS, WITHOUT_TABLE):
            of_kind = [(each.service, each.text) for each in found if each.event == kind.event]
            problems.set(kind, of_kind)
        problems.set(REFUSED, [(name, str(error)) for name, error in writer.refused.items()])
        problems.set(ON_BACKUP, _on_backup(writer, changes))
        self._complete = writer.is_complete
        self._totals = Totals(
            services=writer.totals.services,
            frontends=writer.totals.frontends,
            services_refused=len(problems.places(REFUSED)),
            services_left_out=self._left_out,
            services_misconfigured=len(problems.places(MISCONFIGURED)),
            services_without_table=len(problems.places(WITHOUT_TABLE)),
            addresses_refused=changes.admission.count_refused(),
            conflicts=len(problems.texts(CONFLICT)),
            services_on_backup=len(writer.totals.backups),
            ejected_endpoints=writer.totals.ejected,
            no_local=dict(writer.totals.no_local),
        )

    def totals(self) -> Totals:
        """The totals for /metrics."""
        return replace(
            self._totals,
            source_errors=tuple(self.problems.by_place(SOURCE)),
            attach_errors=len(self.problems.places(ATTACH)),
            health_check_errors=len(self.problems.places(HEALTH_CHECK)),
            dsr_peers=self._dsr_counts,
        )

    def report(
        self, health: Health, network: NetworkReport, rights_kept: Mapping[str, str]
    ) -> AgentReport:
        """The report for /status. For any thread."""
        last, problems = health.last_sync, self.problems
        return AgentReport(
            version=__version__,
            node=self._node,
            pid=os.getpid(),
            started=rfc3339(self._started),
            healthy=health.is_alive(),
            in_sync=self._complete and health.is_idle(),
            last_sync=None if last is None else rfc3339(last),
            services=self._totals.services,
            frontends=self._totals.frontends,
            selectors=dict(self._selectors),
            services_left_out=self._left_out,
            ejected_endpoints=self._totals.ejected_endpoints,
            dsr_peers=self._dsr_peers,
            kernel_lacks=dict(self._lacks),
            rights_kept=dict(rights_kept),
            source_errors=problems.by_place(SOURCE),
            unread_seconds=round(health.unread_seconds()),
            stale_since=None if self._as_of is None else rfc3339(self._as_of),
            attach_errors=problems.by_place(ATTACH),
            health_check_errors=problems.by_place(HEALTH_CHECK),
            refused=problems.by_place(REFUSED),
            conflicts=problems.texts(CONFLICT),
            misconfigured=problems.lines(MISCONFIGURED),
            addresses_refused=problems.lines(ADDRESS),
            without_table=problems.lines(WITHOUT_TABLE),
            **structs.asdict(network),
        )


def _on_backup(writer: ServiceWriter, changes: Changes) -> Iterator[tuple[ServiceName, str]]:
    for name, use in sorted(writer.totals.backups.items()):
        # It may have gone, which the next write programs.
        if service := changes.service(name):
            yield name, why_used(service, use)


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
