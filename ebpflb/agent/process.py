# SPDX-License-Identifier: Apache-2.0
"""The agent's process: puts the parts together, runs the loop, and ends in order on a signal."""

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
from ebpflb.agent.resource_limits import (
    collect_seldom,
    raise_file_limit,
    set_oom_score,
    settle,
    switch_threads_often,
)
from ebpflb.agent.sources import ObjectSource, source_of
from ebpflb.config.settings import Settings, plain_settings
from ebpflb.config.values import parse_bind_address
from ebpflb.dataplane.attach.devices import NetworkWatch, listen_addresses
from ebpflb.dataplane.attach.node_addresses import bound_address
from ebpflb.log import fields, set_up
from ebpflb.model.changes import Changes, Kind, ObjectKey
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.flows.pipeline import FlowPipeline
from ebpflb.observe.health import Health
from ebpflb.observe.http.debug_pages import debug_routes, slis_routes
from ebpflb.observe.http.health_check_node_port import HealthCheckServer
from ebpflb.observe.http.server import Routes, Server, health_routes, metrics_routes
from ebpflb.observe.metrics.page import Metrics, SharedPage
from ebpflb.observe.metrics.programming_latency import FirstConnections, FirstConnectionsThread
from ebpflb.observe.metrics.reader import MapReader, OptionalSeries
from ebpflb.source.interface import Announcement, SourceEvent

_log = logging.getLogger("ebpflb.agent")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(settings: Settings) -> None:
    """Serve this node until SIGTERM or SIGINT. What is attached and pinned stays.

    For the main thread. Raises EbpflbError for errors that a retry cannot cure.
    """
    set_up(settings.log_format, settings.verbosity)
    set_oom_score(settings.oom_score_adj)
    raise_file_limit()
    collect_seldom()
    switch_threads_often()
    with ExitStack() as parts:
        _run(settings, parts)
    _log.info("stopped; what is loaded keeps running")


def _run(settings: Settings, parts: ExitStack) -> None:
    dataplane = NodeDataplane(settings)
    parts.callback(dataplane.close)
    health = Health(dataplane.families, patience=2 * settings.sync_period)
    bound = tuple(bound_address(settings.bind_address).values())
    changes = Changes(settings.node_name, bound, masquerade_all=settings.masquerade_all)
    locations = EndpointLocations(settings.node_name)
    flows = FlowPipeline(settings, changes, lambda: dataplane.maps, locations.pod)
    dataplane.on_expired = flows.accept
    metrics, begin_to_measure = _make_metrics(settings, dataplane, locations, flows, parts)
    source = source_of(settings)
    checks = HealthCheckServer(health.is_alive, partial(listen_addresses, settings))
    parts.callback(checks.stop)
    observers = Observers(health, metrics, begin_to_measure, source.announce, checks.serve)
    periods = Periods(settings.sync_period, settings.min_sync_period)
    agent = Agent(changes, dataplane, observers, periods)

    def take(event: SourceEvent) -> None:
        locations.note(event)
        agent.tell(event)

    _connect(agent, settings, parts)
    source.start(take)
    parts.callback(source.stop)
    shown = fields(version=__version__, node=settings.node_name, source=str(source))
    _log.info("started", extra=shown)
    agent.status.set_lacks(dataplane.lacks)
    metrics.lacks(dataplane.lacks)
    _serve_health(parts, settings, health_routes(health, metrics.answered), source)
    _serve_metrics(parts, settings, metrics, lambda: agent.status.report(health))
    flows.start(agent.tell)
    parts.callback(flows.stop)
    agent.run()


def _make_metrics(
    settings: Settings,
    dataplane: NodeDataplane,
    locations: EndpointLocations,
    flows: FlowPipeline,
    parts: ExitStack,
) -> tuple[Metrics, Callable[[], None]]:
    """The metrics, and what to call once after the first sync."""
    series = OptionalSeries(settings.metrics_services, settings.metrics_backends)
    reader = MapReader(dataplane, locations, series, flows.counts)
    metrics = Metrics(dataplane.families, reader.read)
    metrics.registry.register(flows.collector())
    first_connections = FirstConnectionsThread(
        FirstConnections(metrics.first_connection), lambda: dataplane.maps, dataplane.written
    )
    parts.callback(first_connections.stop)

    def begin() -> None:
        reader.begin()
        first_connections.start()
        settle()

    return metrics, begin


def _connect(agent: Agent, settings: Settings, parts: ExitStack) -> None:
    """Have signals, failed threads, the settings file and the network send messages to the loop."""
    parts.enter_context(_ended_by_signals(agent))
    parts.enter_context(_ended_by_failed_threads(agent))
    parts.enter_context(config_watched(settings.config, lambda: agent.tell(Wakeup.STOP)))
    parts.callback(NetworkWatch(lambda: agent.tell(Wakeup.NETWORK)).stop)


def _serve_health(
    parts: ExitStack, settings: Settings, routes: Routes, source: ObjectSource
) -> None:
    """Serve the port that load balancers ask. If it cannot be opened, the Node gets an Event."""
    node = ObjectKey(Kind.NODE, "", settings.node_name)

    def announce(error: str) -> None:
        note = f"failed to start proxier healthz on {error}"
        source.announce(Announcement(node, "FailedToStartProxierHealthcheck", note))

    _serve(parts, settings.healthz_bind_address, settings, routes, announce)


def _serve_metrics(
    parts: ExitStack, settings: Settings, metrics: Metrics, status: Callable[[], object]
) -> None:
    routes = {**metrics_routes(SharedPage(metrics.page), status), **slis_routes()}
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
    """A thread that fails ends the agent, so that it is restarted and does not run without it."""

    def end(failed: threading.ExceptHookArgs) -> None:
        agent.tell(failed.exc_value or failed.exc_type())

    before, threading.excepthook = threading.excepthook, end
    try:
        yield
    finally:
        threading.excepthook = before
