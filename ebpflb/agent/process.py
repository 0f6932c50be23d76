# SPDX-License-Identifier: Apache-2.0
"""The agent's process: its limits, wiring of its parts, the loop, and an orderly shutdown."""

import ctypes
import gc
import logging
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from ebpflb import __version__
from ebpflb.agent.config_file import config_watched
from ebpflb.agent.dataplane.node import NodeDataplane
from ebpflb.agent.explain import Explaining, KeptPast
from ebpflb.agent.loop import Agent, Periods, Wakeup
from ebpflb.agent.map_queries import MapQueries
from ebpflb.agent.observers import Observers
from ebpflb.agent.rights import Rights, agent_role, client_role, source_role
from ebpflb.agent.sources import ObjectSource, require_manifests, selection_of, source_of
from ebpflb.config.settings import Settings, plain_settings
from ebpflb.config.values import parse_bind_address
from ebpflb.dataplane.attach.devices import NetworkWatch, listen_addresses
from ebpflb.dataplane.attach.node_addresses import bound_address
from ebpflb.dataplane.load import compile_cache
from ebpflb.log import fields, set_up
from ebpflb.model.address import SocketAddress
from ebpflb.model.admission.addresses import AddressRules
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import Ejections, Times
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.model.plan import Defaults
from ebpflb.model.service import Dsr
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.flows.pipeline import FlowPipeline
from ebpflb.observe.health import Health
from ebpflb.observe.http.debug_pages import debug_routes, slis_routes
from ebpflb.observe.http.health_check_node_port import HealthCheckServer
from ebpflb.observe.http.listener import Listener
from ebpflb.observe.http.query_port import QueryPort
from ebpflb.observe.http.query_socket import QueryServer, Route
from ebpflb.observe.http.server import (
    TcpPort,
    health_routes,
    metrics_routes,
    openmetrics_routes,
    quick,
    slow,
)
from ebpflb.observe.metrics.page import Metrics, SharedPage
from ebpflb.observe.metrics.programming_latency import FirstConnections, FirstConnectionsThread
from ebpflb.observe.metrics.reader import MapReader, OptionalSeries
from ebpflb.observe.metrics.text_format import OPENMETRICS
from ebpflb.observe.pod_names import PodNames
from ebpflb.observe.served.kept_changes import kept_changes
from ebpflb.observe.served.recorder import ServedRecorder
from ebpflb.observe.served.then import PastServices
from ebpflb.source.interface import Announcement, SourceEvent
from ebpflb.web.answers import Respond
from ebpflb.web.server import HttpServer
from ebpflb.web.tls import Certificates, mutual_server
from ebpflb.words.events import EventReason
from ebpflb.words.scheduler import Scheduler

_log = logging.getLogger("ebpflb.agent")
# More than enough; some tools loop over all descriptor numbers up to the limit.
ENOUGH_FILES = 65536
_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")
_SWITCH_SECONDS = 0.0005
# How many new objects trigger a garbage collection; Python's default is 700. Nearly all objects
# created before the end of the first sync live on. A page of metrics makes hundreds of thousands,
# and some stay until the next one: they are gone over a few at a time, a millisecond, and together
# only after so many of these collections.
_COLLECT_AFTER = 10_000
_COLLECT_SURVIVORS_AFTER = 1_000
_COLLECT_AT_FIRST_AFTER = 200_000
# From <malloc.h>. Setting it stops glibc from adapting the threshold to freed sizes.
_M_MMAP_THRESHOLD = -3
_LARGE_BUFFER = 1 << 19


def settle() -> None:
    """Exempt all existing objects from garbage collection, and free unused memory.

    Call it after building up much state: otherwise each full collection would go over every
    Service again, and delay changes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, _COLLECT_SURVIVORS_AFTER)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def collect_seldom() -> None:
    """Collect garbage only after very many new objects."""
    gc.set_threshold(_COLLECT_AT_FIRST_AFTER)


def return_large_buffers() -> None:
    """Return the memory of each large buffer to the kernel as soon as it is freed.

    By default the C library soon keeps them, and a pass over the maps makes many.
    """
    if set_option := getattr(ctypes.CDLL(None), "mallopt", None):
        set_option(_M_MMAP_THRESHOLD, _LARGE_BUFFER)


def switch_threads_often() -> None:
    """Shorten the thread switch interval, so a busy thread delays others a tenth as long.

    A change waits for the interpreter lock after each access to a map or a socket.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def set_oom_score(oom_score_adj: int) -> None:
    """Have the kernel kill other processes first when memory is short; -1000 to 1000."""
    try:
        _OOM_SCORE_ADJ.write_text(str(oom_score_adj))
    except OSError as error:
        shown = fields(oom_score_adj=oom_score_adj, needs="CAP_SYS_RESOURCE")
        _log.debug("cannot set oom_score_adj: %s", error.strerror, extra=shown)


def raise_file_limit() -> None:
    """Raise the soft limit of open files: each health check node port needs one or two.

    systemd starts services with 1,024, and two hundred Services could use up half of those.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def raise_memory_limit() -> None:
    """Kernels before 5.11 count maps as locked memory; raise the limit, if they let us."""
    with suppress(OSError, ValueError):
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, unlimited)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(settings: Settings) -> None:
    """Serve this node until SIGTERM or SIGINT. Attached programs and pins stay.

    Call it in the main thread. Raises EbpflbError for errors that a retry cannot fix.
    """
    set_up(settings.log_format, settings.verbosity)
    set_oom_score(settings.oom_score_adj)
    raise_file_limit()
    raise_memory_limit()
    collect_seldom()
    return_large_buffers()
    switch_threads_often()
    require_manifests(settings)
    rights = Rights()
    rights.give_up(agent_role())
    with ExitStack() as parts:
        parts.enter_context(compile_cache.held(compile_cache.DIRECTORY))
        _run(settings, rights, parts)
    _log.info("stopped; loaded programs keep running")


def _defaults(settings: Settings) -> Defaults:
    scheduler = Scheduler(settings.scheduler)
    dsr = Dsr(settings.dsr)
    return Defaults(
        settings.masquerade_all,
        scheduler,
        settings.maglev_table_size,
        dsr,
        pod_labels=settings.watch_pods or settings.manifests is not None,
    )


def _address_rules(settings: Settings, api_servers: frozenset[SocketAddress]) -> AddressRules:
    """The servers of this agent are protected like others of the node."""
    servers = (
        settings.metrics_bind_address,
        settings.healthz_bind_address,
        settings.observe_bind_address,
    )
    own = {found.port for found in map(parse_bind_address, servers) if found}
    if settings.dsr != "off":
        own.add(settings.dsr_port)
    return AddressRules(
        settings.external_ips,
        settings.load_balancer_ips,
        own.union(settings.protected_ports),
        api_servers,
    )


def _no_changes(settings: Settings, api_servers: frozenset[SocketAddress]) -> Callable[[], Changes]:
    """Makes models that know no object yet."""
    bound = tuple(bound_address(settings.bind_address).values())
    return lambda: Changes(
        settings.node_name,
        bound,
        _defaults(settings),
        selection_of(settings),
        Ejections(settings.ejection, Times(first=settings.ejection_time)),
        _address_rules(settings, api_servers),
    )


def _health(dataplane: NodeDataplane, settings: Settings) -> Health:
    patience = 2 * settings.sync_period
    return Health(dataplane.families, patience=patience, on_sync=dataplane.note_sync)


def _run(settings: Settings, rights: Rights, parts: ExitStack) -> None:
    dataplane = NodeDataplane(settings)
    parts.callback(dataplane.close)
    http = _http_server(rights, parts)
    health = _health(dataplane, settings)
    source = source_of(settings)
    no_changes = _no_changes(settings, source.api_servers)
    changes = no_changes()
    locations = EndpointLocations(settings.node_name)
    pods = PodNames(locations)
    flows = FlowPipeline(settings, changes, lambda: dataplane.maps, pods.at, dataplane.addresses_in)
    dataplane.on_expired = flows.accept
    metrics, begin_to_measure = _make_metrics(settings, dataplane, locations, flows, parts)
    checks = _health_checks(http, health, settings, parts)
    kept = kept_changes(settings)
    served = ServedRecorder(changes, kept)
    observers = Observers(health, metrics, served, begin_to_measure, source.announce, checks.serve)
    periods = Periods(settings.sync_period, settings.min_sync_period)
    agent = Agent(changes, dataplane, observers, periods)

    _connect(agent, settings, parts)
    _start(source, settings, rights, _in_turn(locations.note, pods.note, agent.tell), parts)
    agent.status.set_lacks(dataplane.lacks)
    metrics.lacks(dataplane.lacks)
    metrics.unread(health.unread_seconds, agent.status.stale_seconds)
    serve = _Ports(http, settings, parts)
    serve.health(quick(health_routes(health, metrics.answered)), source)
    serve.metrics(
        metrics,
        lambda: agent.status.report(health, dataplane.report(), rights.kept),
    )
    serve.begin(flows, served)
    services = PastServices(kept, no_changes) if kept else None
    serve.queries(
        {
            **_routes(settings, dataplane, agent, flows, services),
            **MapQueries(lambda: dataplane.maps, changes, flows.past_rates.answer, pods.at).routes,
        }
    )
    agent.run()


def _start(
    source: ObjectSource,
    settings: Settings,
    rights: Rights,
    emit: Callable[[SourceEvent], None],
    parts: ExitStack,
) -> None:
    rights.started(
        # A kubeconfig may name a program that gets a token.
        source_role(with_plugins=settings.kubeconfig is not None),
        partial(source.start, emit),
    )
    parts.callback(source.stop)
    shown = fields(version=__version__, node=settings.node_name, source=str(source))
    _log.info("started", extra=shown)


def _routes(
    settings: Settings,
    dataplane: NodeDataplane,
    agent: Agent,
    flows: FlowPipeline,
    services: PastServices | None,
) -> Mapping[str, Route]:
    """What can be asked besides the maps."""
    past = KeptPast(services, flows.kept) if services and flows.kept else None
    explaining = Explaining(
        settings.bpffs_root, lambda: dataplane.maps, agent.tell, flows.log, past
    )
    return {**flows.routes, **explaining.routes}


def _http_server(rights: Rights, parts: ExitStack) -> HttpServer:
    server = HttpServer(lambda: rights.give_up(client_role()))
    parts.callback(server.stop)
    return server


def _health_checks(
    http: HttpServer, health: Health, settings: Settings, parts: ExitStack
) -> HealthCheckServer:
    server = HealthCheckServer(http, health.is_alive, partial(listen_addresses, settings))
    parts.callback(server.stop)
    return server


def _in_turn(*followers: Callable[[SourceEvent], None]) -> Callable[[SourceEvent], None]:
    def take(event: SourceEvent) -> None:
        for follow in followers:
            follow(event)

    return take


def _make_metrics(
    settings: Settings,
    dataplane: NodeDataplane,
    locations: EndpointLocations,
    flows: FlowPipeline,
    parts: ExitStack,
) -> tuple[Metrics, Callable[[], None]]:
    """The metrics, and a function to call once after the first sync."""
    series = OptionalSeries(settings.metrics_services, settings.metrics_backends, flows.latency)
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
    """Send the loop messages about signals, failed threads, the settings file and the network."""
    parts.enter_context(_ended_by_signals(agent))
    parts.enter_context(_ended_by_failed_threads(agent))
    parts.enter_context(config_watched(settings.config, lambda: agent.tell(Wakeup.STOP)))
    parts.callback(NetworkWatch(lambda: agent.tell(Wakeup.NETWORK)).stop)


@dataclass(frozen=True, slots=True)
class _Ports:
    """The health and metrics ports, until `parts` are closed."""

    http: HttpServer
    settings: Settings
    parts: ExitStack

    def health(self, respond: Respond, source: ObjectSource) -> None:
        """If it cannot be opened, the Node gets an Event."""
        node = ObjectKey(Kind.NODE, "", self.settings.node_name)

        def announce(error: str) -> None:
            note = f"failed to start proxier healthz on {error}"
            source.announce(Announcement(node, EventReason.HEALTH_PORT, note))

        self._open(self.settings.healthz_bind_address, respond, announce)

    def metrics(self, metrics: Metrics, status: Callable[[], object]) -> None:
        text = SharedPage(metrics.page)
        routes = {**metrics_routes(text, status), **slis_routes()}
        debug = debug_routes(plain_settings(self.settings), routes)
        forms = openmetrics_routes(SharedPage(partial(metrics.page, OPENMETRICS)), text)
        self._open(self.settings.metrics_bind_address, slow({**routes, **forms, **debug}))

    def queries(self, routes: Mapping[str, Route]) -> None:
        """At the query socket, and for the relay."""
        if path := self.settings.query_socket:
            self.begin(QueryServer(self.http, path, routes))
        if address := parse_bind_address(self.settings.observe_bind_address):
            encryption = Certificates(self.settings.observe_tls_directory, mutual_server).context
            self.begin(QueryPort(self.http, address, routes, encryption))

    def begin(self, *parts: Listener | FlowPipeline | ServedRecorder) -> None:
        for part in parts:
            part.start()
            self.parts.callback(part.stop)

    def _open(
        self,
        bind_address: str,
        respond: Respond,
        on_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        if address := parse_bind_address(bind_address):
            port = TcpPort(self.http, address, respond)
            port.start(hard_fail=self.settings.bind_address_hard_fail, on_failure=on_failure)
            self.parts.callback(port.stop)


@contextmanager
def _ended_by_signals(agent: Agent) -> Iterator[None]:
    """The first signal ends the loop, the second one ends the process."""

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
    """A failed thread ends the agent: it is restarted instead of running without that thread."""

    def end(failed: threading.ExceptHookArgs) -> None:
        agent.tell(failed.exc_value or failed.exc_type())

    before, threading.excepthook = threading.excepthook, end
    try:
        yield
    finally:
        threading.excepthook = before
