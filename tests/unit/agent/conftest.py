# SPDX-License-Identifier: Apache-2.0
"""An agent on an in-memory node, whose loop runs when a test says so."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec import to_builtins

from ebpflb.agent.loop import Agent, Periods
from ebpflb.agent.observers import Observers
from ebpflb.model.agent_report import NetworkReport
from ebpflb.model.changes import Changes
from ebpflb.model.health_check import HealthCheck
from ebpflb.model.objects.kinds import ApiObject, ObjectKey, key_of
from ebpflb.model.plan import NO_DEFAULTS, Defaults
from ebpflb.model.service import ServiceName
from ebpflb.observe.health import Health
from ebpflb.observe.metrics.page import Metrics
from ebpflb.observe.served.recorder import ServedRecorder
from ebpflb.source.interface import Announcement, SourceEvent
from tests.builders import NODE, endpoint, endpoint_slice, service, service_port
from tests.unit.agent.node import Clock, MemoryNode

FAMILIES = ("IPv4", "IPv6")
WEB = service("web")
SLICE = endpoint_slice("web-1", endpoint("10.1.0.1"))
OTHER_SLICE = endpoint_slice("web-1", endpoint("10.1.0.2"))
LATE = service("late", service_port("10.96.0.99"))


class Bench:
    """An agent and everything that it needs."""

    def __init__(
        self,
        sizes: Mapping[str, int] | None = None,
        periods: Periods = Periods(),  # noqa: B008  immutable
        defaults: Defaults = NO_DEFAULTS,
    ) -> None:
        self.clock = Clock()
        self.node = MemoryNode(self.clock, sizes)
        self.health = Health(FAMILIES, monotonic=self.clock)
        self.metrics = Metrics(FAMILIES)
        self.first_syncs = 0
        self.announced: list[Announcement] = []
        self.health_checks: Mapping[ServiceName, HealthCheck] = {}
        self.health_check_errors: dict[ServiceName, str] = {}
        changes = Changes(NODE, defaults=defaults)
        observers = Observers(
            self.health,
            self.metrics,
            ServedRecorder(changes, None),
            self._count_first_sync,
            self.announced.append,
            self._serve_health_checks,
        )
        self.agent = Agent(changes, self.node, observers, periods, self.clock)
        self._said_anything = False

    def _count_first_sync(self) -> None:
        self.first_syncs += 1

    def _serve_health_checks(
        self, checks: Mapping[ServiceName, HealthCheck]
    ) -> Mapping[ServiceName, str]:
        self.health_checks = checks
        return {name: text for name, text in self.health_check_errors.items() if name in checks}

    def say(
        self, *upserts: ApiObject, gone: tuple[ApiObject | ObjectKey, ...] = (), **fields: Any
    ) -> None:
        """Queue this as if the source had reported it."""
        keys = tuple(key if isinstance(key, ObjectKey) else key_of(key) for key in gone)
        initial, self._said_anything = not self._said_anything, True
        errors = fields.get("errors", {})
        as_of = fields.get("as_of")
        self.agent.tell(
            SourceEvent(upserts, keys, errors, initial, complete=not errors, as_of=as_of)
        )

    def turn(self, seconds: float = 0.0) -> list[str]:
        """Let time pass, run the loop once, and return the calls it made."""
        self.clock.now += seconds
        del self.node.calls[:]
        self.agent.turn(0)
        return list(self.node.calls)

    def report(self) -> dict[str, Any]:
        """The content of /status."""
        made = self.agent.status.report(self.health, NetworkReport(), {})
        return dict(to_builtins(made))

    def samples(self) -> dict[str, float]:
        """Metrics without labels."""
        collected = self.metrics.registry.collect()
        return {each.name: each.value for family in collected for each in family.samples}


@pytest.fixture
def bench() -> Bench:
    """An agent that has received nothing yet."""
    return Bench()


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    """For agents with small maps."""
    return Bench


@pytest.fixture
def served(bench: Bench) -> Bench:
    """An agent that serves default/web."""
    bench.say(WEB, SLICE)
    bench.turn()
    return bench
