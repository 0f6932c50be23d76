# SPDX-License-Identifier: Apache-2.0
"""The life of an agent's process: parts made and joined, signals, and an end that cuts nothing."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType

from ebpflb import __version__
from ebpflb.agent.config_file import config_watched
from ebpflb.agent.dataplane import NodeDataplane
from ebpflb.agent.loop import Agent, Observers, Periods, Wakeup
from ebpflb.agent.measuring import Measuring
from ebpflb.agent.resource_limits import (
    collect_seldom,
    raise_file_limit,
    set_oom_score,
    settle,
    switch_threads_often,
)
from ebpflb.agent.sources import Origin, origin_of
from ebpflb.config.settings import Settings, parse_bind_address, plain_settings
from ebpflb.dataplane.attach.devices import listen_addresses, watch
from ebpflb.dataplane.attach.node_addresses import bound_address
from ebpflb.log import fields, set_up
from ebpflb.model.changes import Changes, Kind, ObjectKey
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.flows.pipeline import FlowPipeline
from ebpflb.observe.health import Health
from ebpflb.observe.http.debug_pages import debug_routes
from ebpflb.observe.http.health_check_node_port import HealthCheckServer
from ebpflb.observe.http.server import Routes, Server, health_routes, metrics_routes
from ebpflb.observe.metrics.page import Metrics
from ebpflb.observe.metrics.slis import slis_routes
from ebpflb.source.interface import Announcement, SourceEvent

_log = logging.getLogger("ebpflb.agent")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(settings: Settings) -> None:
    """Serve this node until SIGTERM or SIGINT. What is attached and pinned stays.

    For the main thread. Raises EbpflbError for what repeating cannot mend.
    """
    set_up(settings.log_format, settings.verbosity)
    _prepare(settings)
    with ExitStack() as parts:
        kernel = NodeDataplane(settings)
        parts.callback(kernel.close)
        health = Health(kernel.families, patience=2 * settings.sync_period)
        changes, locations = _changes(settings), EndpointLocations(settings.node_name)
        flows = FlowPipeline(settings, changes, lambda: kernel.maps, locations.pod)
        kernel.on_expired = flows.accept
        measuring = Measuring(settings, kernel, locations, flows.counts)
        measuring.metrics.registry.register(flows.collector())
        parts.callback(measuring.stop)
        origin = origin_of(settings)
        checks = HealthCheckServer(health.is_alive, partial(listen_addresses, settings))
        parts.callback(checks.stop)
        observers = Observers(
            health, measuring.metrics, _begun(measuring), origin.announce, checks.serve
        )
        agent = Agent(changes, kernel, observers, _periods(settings))
        _heed(parts, settings, agent)
        origin.start(_told(locations, agent))
        parts.callback(origin.stop)
        _tell_start(settings, str(origin))
        _tell_lacks(kernel, agent, measuring.metrics)
        _serve_health(parts, settings, health_routes(health, measuring.metrics.answered), origin)
        _serve_metrics(
            parts, settings, metrics_routes(measuring.page, lambda: agent.status.report(health))
        )
        flows.start(agent.tell)
        parts.callback(flows.stop)
        agent.run()
    _log.info("stopped, what is loaded goes on")


def _prepare(settings: Settings) -> None:
    set_oom_score(settings.oom_score_adj)
    raise_file_limit()
    collect_seldom()
    switch_threads_often()


def _heed(parts: ExitStack, settings: Settings, agent: Agent) -> None:
    """What ends the loop, and what wakes it beside the source."""
    parts.enter_context(_ended_by_signals(agent))
    parts.enter_context(_ended_by_failed_threads(agent))
    parts.enter_context(config_watched(settings.config, lambda: agent.tell(Wakeup.STOP)))
    parts.callback(watch(lambda: agent.tell(Wakeup.NETWORK)).stop)


def _periods(settings: Settings) -> Periods:
    return Periods(settings.sync_period, settings.min_sync_period)


def _begun(measuring: Measuring) -> Callable[[], None]:
    """What follows the first sync: first what stays, then all that is there is settled."""

    def begin() -> None:
        measuring.begin()
        settle()

    return begin


def _told(locations: EndpointLocations, agent: Agent) -> Callable[[SourceEvent], None]:
    def tell(event: SourceEvent) -> None:
        locations.note(event)
        agent.tell(event)

    return tell


def _changes(settings: Settings) -> Changes:
    bound = tuple(bound_address(settings.bind_address).values())
    return Changes(settings.node_name, bound, masquerade_all=settings.masquerade_all)


def _serve_health(parts: ExitStack, settings: Settings, routes: Routes, origin: Origin) -> None:
    """The server that load balancers ask: that nobody answers there is told at the Node."""
    node = ObjectKey(Kind.NODE, "", settings.node_name)

    def tell(error: str) -> None:
        note = f"failed to start proxier healthz on {error}"
        origin.announce(Announcement(node, "FailedToStartProxierHealthcheck", note))

    _serve(parts, settings.healthz_bind_address, settings, routes, tell)


def _serve_metrics(parts: ExitStack, settings: Settings, report: Routes) -> None:
    routes = {**report, **slis_routes()}
    debug = debug_routes(plain_settings(settings), routes)
    _serve(parts, settings.metrics_bind_address, settings, {**routes, **debug})


def _serve(
    parts: ExitStack,
    bind_address: str,
    settings: Settings,
    routes: Routes,
    on_failure: Callable[[str], None] = lambda _: None,
) -> None:
    address = parse_bind_address(bind_address)
    if address:
        server = Server(address, routes, on_failure=on_failure)
        server.start(hard_fail=settings.bind_address_hard_fail)
        parts.callback(server.stop)


@contextmanager
def _ended_by_signals(agent: Agent) -> Iterator[None]:
    """The first signal ends the loop, a second one the process."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        agent.tell(Wakeup.STOP)

    before = {number: signal.signal(number, end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


@contextmanager
def _ended_by_failed_threads(agent: Agent) -> Iterator[None]:
    """A thread that fails ends the agent, which is then started anew; nobody would miss it else."""

    def end(failed: threading.ExceptHookArgs) -> None:
        agent.tell(failed.exc_value or failed.exc_type())

    before, threading.excepthook = threading.excepthook, end
    try:
        yield
    finally:
        threading.excepthook = before


def _tell_start(settings: Settings, source: str) -> None:
    shown = fields(version=__version__, node=settings.node_name, source=source)
    _log.info("started", extra=shown)


def _tell_lacks(kernel: NodeDataplane, agent: Agent, metrics: Metrics) -> None:
    agent.status.set_lacks(kernel.lacks)
    metrics.lacks(kernel.lacks)
