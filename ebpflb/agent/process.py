# SPDX-License-Identifier: Apache-2.0
"""The life of an agent's process: parts made and joined, signals, and an end that cuts nothing."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from ebpflb import __version__
from ebpflb.agent.kernel import Kernel
from ebpflb.agent.loop import Agent, Observers, Wakeup
from ebpflb.agent.memory import settle
from ebpflb.config import Settings, parse_bind_address
from ebpflb.dataplane.devices import watch
from ebpflb.log import fields, set_up
from ebpflb.model.changes import Changes
from ebpflb.observe.health import Health
from ebpflb.observe.metrics import Metrics
from ebpflb.observe.server import Routes, Server, health_routes, metrics_routes
from ebpflb.source.directory import DirectorySource

_log = logging.getLogger("ebpflb.agent")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(settings: Settings) -> None:
    """Serve this node until SIGTERM or SIGINT. What is attached and pinned stays.

    For the main thread. Raises EbpflbError for what repeating cannot mend.
    """
    set_up(settings.log_format, settings.verbosity)
    with ExitStack() as parts:
        kernel = Kernel(settings)
        parts.callback(kernel.close)
        health = Health(kernel.families)
        metrics = Metrics(kernel.families, kernel.read)
        agent = Agent(Changes(settings.node_name), kernel, Observers(health, metrics, settle))
        parts.enter_context(_ended_by_signals(agent))
        parts.enter_context(_ended_by_failed_threads(agent))
        parts.callback(watch(lambda: agent.tell(Wakeup.NETWORK)).stop)
        source = DirectorySource(settings.manifests, agent.tell)
        source.start()
        parts.callback(source.stop)
        shown = fields(version=__version__, node=settings.node_name, source=settings.manifests)
        _log.info("started", extra=shown)
        _serve(parts, settings.healthz_bind_address, health_routes(health, metrics.answered))
        report = metrics_routes(metrics.page, lambda: agent.state.report(health))
        _serve(parts, settings.metrics_bind_address, report)
        agent.run()
    _log.info("stopped, what is loaded goes on")


def _serve(parts: ExitStack, bind_address: str, routes: Routes) -> None:
    address = parse_bind_address(bind_address)
    if address:
        server = Server(address, routes)
        server.start()
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
