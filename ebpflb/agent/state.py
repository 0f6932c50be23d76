# SPDX-License-Identifier: Apache-2.0
"""What the agent knows of itself, for /status and metrics; each change of it is one log line.

Written by the loop, read by other threads: every attribute is replaced as a whole.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ebpflb import __version__
from ebpflb.agent.writer import Writer
from ebpflb.log import fields
from ebpflb.model.address import format_address
from ebpflb.model.changes import Conflict
from ebpflb.observe.health import Health, rfc3339
from ebpflb.observe.metrics import Totals

_log = logging.getLogger("ebpflb.agent")


class State:
    """The last of everything that a person may ask for."""

    def __init__(self, node: str, wall: Callable[[], float] = time.time) -> None:
        """`wall`: seconds since 1970."""
        self._node = node
        self._started = wall()
        self._source_errors: Mapping[str, str] = {}
        self._attach_errors: Mapping[str, str] = {}
        self._refused: Mapping[str, str] = {}
        self._conflicts: tuple[str, ...] = ()
        self._totals = Totals()
        self._complete = False

    def set_source_errors(self, errors: Mapping[str, str]) -> None:
        """The manifests that cannot be read, and why."""
        old, self._source_errors = self._source_errors, dict(errors)
        for file, text in errors.items():
            if old.get(file) != text:
                _log.warning("cannot read: %s", text)
        for file in sorted(old.keys() - errors.keys()):
            _log.info("can be read again", extra=fields(file=file))

    def set_attach_errors(self, errors: Mapping[str, Exception]) -> None:
        """The devices, hooks and maps that could not be served, and why."""
        old, self._attach_errors = self._attach_errors, {k: str(v) for k, v in errors.items()}
        for place, text in self._attach_errors.items():
            if old.get(place) != text:
                _log.error("not served: %s", text, extra=fields(at=place))
        for place in sorted(old.keys() - errors.keys()):
            _log.info("served again, or gone", extra=fields(at=place))

    def set_plan(self, writer: Writer, conflicts: tuple[Conflict, ...]) -> None:
        """What is wanted, and what of it is not in force."""
        old, self._conflicts = self._conflicts, tuple(map(_in_words, conflicts))
        for text in self._conflicts:
            if text not in old:
                _log.warning(text)
        self._refused = {str(name): str(error) for name, error in writer.refused.items()}
        self._complete = writer.is_complete
        self._totals = Totals(
            services=writer.tally.services,
            frontends=writer.tally.frontends,
            services_refused=len(self._refused),
            conflicts=len(conflicts),
            no_local=dict(writer.tally.no_local),
        )

    def totals(self) -> Totals:
        """For metrics."""
        return replace(
            self._totals,
            source_errors=tuple(self._source_errors),
            attach_errors=len(self._attach_errors),
        )

    def report(self, health: Health) -> dict[str, object]:
        """For /status: fit for JSON."""
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
            "source_errors": self._source_errors,
            "attach_errors": self._attach_errors,
            "refused": self._refused,
            "conflicts": list(self._conflicts),
        }


def _in_words(conflict: Conflict) -> str:
    address, port, protocol = conflict.key
    return (
        f"{conflict.loser} does not get {protocol.name} {format_address(address)} port {port}: "
        f"{conflict.winner} has it"
    )
