# SPDX-License-Identifier: Apache-2.0
"""The loop: queue -> changes -> plan -> sync -> health. The only thread that programs Services.

Changes coalesce while a write is under way; no timer delays them unless a minimum sync period is
set. Nothing is programmed before the source has listed everything once, and nothing of an earlier
run is removed before all objects could be read. A failed write is retried as a full comparison,
with exponential backoff.
"""

import errno
import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ebpflb.agent.dsr_probe import DsrProbing
from ebpflb.agent.ejection import Ejecting
from ebpflb.agent.ending import EndingConnections
from ebpflb.agent.interface import GRACE_SECONDS, Dataplane, Errors
from ebpflb.agent.observers import Observers
from ebpflb.agent.problems import ATTACH, HEALTH_CHECK, SOURCE
from ebpflb.agent.spilling import Spilling
from ebpflb.agent.status import AgentStatus
from ebpflb.agent.timers import Backoff, StaleSocketPasses, Task, Timers
from ebpflb.agent.watcher import Watcher
from ebpflb.agent.writer import ServiceWriter, WriteDone, lacks_room
from ebpflb.errors import EbpflbError, MapError, ProbeError
from ebpflb.log import fields
from ebpflb.model.address import Address, Family
from ebpflb.model.changes import Changes
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import Kind, ObjectKey, key_of
from ebpflb.model.pod import PodSockets
from ebpflb.observe.flows.queries import ModelQuery
from ebpflb.observe.metrics.programming_latency import ProgrammingLatency
from ebpflb.source.interface import API, SourceEvent

_log = logging.getLogger("ebpflb.agent")

COLLECT_SECONDS = GRACE_SECONDS + 0.1
EXPIRE_SECONDS = 5.0
# Pause between two steps of a pass over the flows, or the Services, to let changes through.
STEP_SECONDS = 0.02
# With very many flows the pauses get longer, up to this, so that they take less of a CPU: a pass
# over two million entries then takes a minute, as the kernel's own over connections may.
LONGEST_STEP_SECONDS = 0.06
EXPIRY_SHARE = 0.03
COMPARE_SECONDS = 3600.0
REPAIR_SECONDS = 60.0
PINS_SECONDS = 5.0
KEYS_SECONDS = 5.0
RULES_SECONDS = 1.0
# How soon to replace tables that evict once they are half full, and to retry after a failure.
ROOM_SECONDS = 1.0
NO_ROOM_SECONDS = 60.0
FIRST_RETRY_SECONDS = 0.1
# Delay before retrying a port in use, as while taking over from kube-proxy.
LISTEN_SECONDS = 1.0
# What passes: descriptors are free again, pins that somebody has removed come back.
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOENT)


class Wakeup(Enum):
    """Messages without content."""

    NETWORK = "devices or addresses may have changed"
    QUIET = "the kernel no longer uses what was replaced"
    STOP = "end"


Message = SourceEvent | Wakeup | ModelQuery[Any] | BaseException


class Periods(NamedTuple):
    """kube-proxy's periods in seconds: the longest wait for a retry, the minimum between syncs."""

    sync: float = 30.0
    min_sync: float = 0.0


class Agent:
    """The loop of one node. `tell()` may be called from any thread and from signal handlers."""

    def __init__(
        self,
        changes: Changes,
        dataplane: Dataplane,
        observers: Observers,
        periods: Periods,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds."""
        self.status = AgentStatus(changes.node.name, observers.announce)
        self._changes = changes
        self._dataplane = dataplane
        self._writer = ServiceWriter(changes, dataplane)
        self._observers = observers
        self._health, self._metrics = observers.health, observers.metrics
        self._periods = periods
        self._clock = clock
        self._queue: SimpleQueue[Message] = SimpleQueue()
        self._timers = Timers(clock)
        self._latency = ProgrammingLatency()
        self._stale_sockets = StaleSocketPasses(
            dataplane, observers.metrics, self._timers, clock, periods.sync
        )
        watchers = {
            Task.EJECT: Ejecting,
            Task.END: EndingConnections,
            Task.SPILL: Spilling,
        }
        self._watchers: Mapping[Task, Watcher] = {
            task: watcher(changes, dataplane, observers, self._timers, clock)
            for task, watcher in watchers.items()
        }
        self._probing = DsrProbing(changes.tunnels, dataplane, self.status, self._timers, clock)
        self._write_backoff = Backoff(FIRST_RETRY_SECONDS, periods.sync)
        self._repair_backoff = Backoff(FIRST_RETRY_SECONDS, REPAIR_SECONDS)
        # Whether the source has listed everything once, and whether that has been programmed.
        self._informed = False
        self._in_force = False
        self._blocked = False
        self._stopped = False
        self._network_changed = False
        self._must_repair = False
        self._must_publish = False
        self._last_write = 0.0
        self._node_ips: Mapping[Family, Address] = {}
        # None: those of an earlier run are still in the maps.
        self._service_ranges: tuple[str, ...] | None = None
        self._pods = PodSockets()
        self._tasks = self._make_tasks()

    def _make_tasks(self) -> Mapping[Task, Callable[[], None]]:
        return {
            Task.COLLECT: self._prepare_collect,
            Task.EXPIRE: self._expire,
            Task.COLLECT_NOW: self._collect,
            Task.RETRY: self._retry,
            Task.COMPARE: self._compare,
            Task.REPAIR: self._repair,
            Task.PINS: self._check_pins,
            Task.ROOM: self._make_room_for_flows,
            Task.RULES: self._follow_rules,
            Task.LISTEN: self._serve_health_checks,
            Task.SOCKETS: self._stale_sockets.run,
            **{task: watcher.run for task, watcher in self._watchers.items()},
            Task.PROBE: self._probing.run,
            Task.KEYS: self._follow_keys,
            # Only wakes the loop, which then writes.
            Task.WRITE: lambda: None,
        }

    def tell(self, message: Message) -> None:
        """Queue a message. An exception means that a thread has failed: the loop raises it."""
        self._queue.put(message)

    def run(self) -> None:
        """Work until stopped. Raises errors that a retry cannot fix."""
        while not self._stopped:
            self.turn(self._timers.wait())

    def turn(self, wait: float | None) -> None:
        """Wait for messages for at most this long (None: forever), and act on them."""
        for message in self._receive(wait):
            self._take(message)
        if self._stopped:
            return
        if self._informed:
            try:
                self._act()
            except MapError as error:
                self._repeat_later(error)
            except OSError as error:
                if error.errno not in _PASSING:
                    raise
                self._repeat_later(error)
        if self._must_publish:
            self._must_publish = False
            self.status.set_selection(self._changes.selection, self._changes.left_out)
            self.status.set_plan(self._writer, self._changes)
            self._metrics.show(self.status.totals())

    def _receive(self, wait: float | None) -> list[Message]:
        messages: list[Message] = []
        try:
            messages.append(self._queue.get(timeout=wait))
            while True:
                messages.append(self._queue.get_nowait())
        except Empty:
            return messages

    def _take(self, message: Message) -> None:
        match message:
            case SourceEvent():
                self._take_objects(message)
            case ModelQuery():
                message.answer(self._changes if self._informed else None)
            case Wakeup.NETWORK:
                self._network_changed = True
            case Wakeup.QUIET:
                self._timers.start(Task.COLLECT_NOW, 0)
            case Wakeup.STOP:
                self._stopped = True
            case BaseException():
                raise message

    def _take_objects(self, event: SourceEvent) -> None:
        self._informed |= event.initial
        for key in event.removals:
            self._changes.remove(key)
        for item in event.upserts:
            self._changes.set(item)
        self._observers.served.note(event)
        self._latency.note(event.triggers)
        self._note_eligibility(event)
        keys = [*event.removals, *map(key_of, event.upserts)]
        kinds = [key.kind for key in keys]
        if keys or event.initial:
            self._health.queued()
            self._metrics.changed(kinds.count(Kind.SERVICE), kinds.count(Kind.ENDPOINT_SLICE))
        self.status.problems.set(SOURCE, event.errors.items())
        self.status.set_as_of(event.as_of)
        self._health.set_readable(API not in event.errors)
        # Until every object has been read once, what an earlier run programmed may still be wanted.
        if self._informed and event.complete:
            self._writer.forget_others()
        self._must_publish = True

    def _note_eligibility(self, event: SourceEvent) -> None:
        name = self._changes.node.name
        if ObjectKey(Kind.NODE, "", name) in event.removals:
            self._health.set_eligible(False)
        for item in event.upserts:
            if isinstance(item, Node) and item.name == name:
                self._health.set_eligible(item.eligible)

    def _act(self) -> None:
        for task in self._timers.take_due():
            # Tasks skipped here are started again after the next write.
            if task is Task.RETRY or not self._blocked:
                self._tasks[task]()
        if not self._blocked:
            self._note_node_ips()
            self._follow_pods()
            # A node whose address has changed counts as new.
            self._follow_peers()
            if not self._is_too_soon():
                self._write()
            self._follow_tunnels()
            self._follow_service_ranges()
            if self._network_changed and self._in_force:
                self._follow_network()

    def _is_too_soon(self) -> bool:
        """Whether the minimum sync period has not passed yet."""
        wait = self._last_write + self._periods.min_sync - self._clock()
        if not (self._in_force and wait > 0):
            return False
        self._timers.ensure(Task.WRITE, wait)
        return True

    def _write(self) -> None:
        began, full = self._clock(), self._writer.is_full_next
        try:
            written = self._writer.write(may_grow=not self._timers.is_started(Task.RETRY))
        except MapError:
            self._metrics.tried(self._clock() - began, full=full)
            raise
        if written is None:
            self._note_idle()
            return
        self._last_write = self._clock()
        seconds = self._last_write - began
        self._timers.ensure(Task.COLLECT, COLLECT_SECONDS)
        self._timers.ensure(Task.EXPIRE, EXPIRE_SECONDS)
        self._timers.ensure(Task.ROOM, ROOM_SECONDS)
        self._timers.ensure(Task.COMPARE, COMPARE_SECONDS)
        self._timers.ensure(Task.REPAIR, REPAIR_SECONDS)
        self._timers.ensure(Task.PINS, PINS_SECONDS)
        if self._changes.tunnels:
            self._timers.ensure(Task.KEYS, KEYS_SECONDS)
        self._note_write(seconds, written)
        self._serve_health_checks()
        self._stale_sockets.synced()
        for watcher in self._watchers.values():
            watcher.synced()
        if not self._in_force:
            self._begin(seconds)

    def _note_write(self, seconds: float, written: WriteDone) -> None:
        self._observers.served.in_force()
        complete = self._writer.is_complete
        if complete:
            self._health.synced()
            self._write_backoff.reset()
            self._metrics.programmed(self._latency.take())
        elif not self._timers.is_started(Task.RETRY):
            self._timers.start(Task.RETRY, self._write_backoff.fail())
        self._latency.forget()
        self._metrics.synced(seconds, full=written.full, complete=complete)
        self._must_publish = True
        shown = fields(services=written.services, full=written.full, seconds=round(seconds, 4))
        _log.debug("synced", extra=shown)

    def _note_idle(self) -> None:
        """Nothing to write: all changes so far are already in force."""
        self._observers.served.in_force()
        if self._writer.is_complete and not self._health.is_idle():
            self._health.synced()
            self._metrics.idle()
            self._metrics.programmed(self._latency.take())

    def _begin(self, seconds: float) -> None:
        """After the first sync, which also attached the hooks: first check those for errors."""
        self._in_force = True
        self._network_changed = True
        self._observers.on_first_sync()
        totals = self._writer.totals
        shown = fields(
            services=totals.services, frontends=totals.frontends, seconds=round(seconds, 3)
        )
        _log.info("in sync", extra=shown)

    def _repeat_later(self, error: MapError | OSError) -> None:
        wait = self._write_backoff.fail()
        self._blocked = True
        self._latency.forget()
        self._writer.compare_everything()
        self._timers.start(Task.RETRY, wait)
        self._metrics.failed()
        _log.error("sync failed: %s", error, extra=fields(again_in_seconds=wait))

    def _retry(self) -> None:
        self._blocked = False
        self._writer.compare_everything()

    def _repair(self) -> None:
        self._network_changed = self._must_repair = True

    def _check_pins(self) -> None:
        if self._dataplane.has_lost_pins():
            self._repair()
        self._timers.start(Task.PINS, PINS_SECONDS)

    def _follow_keys(self) -> None:
        self._timers.start(Task.KEYS, KEYS_SECONDS)
        self._dataplane.follow_keys()

    def _note_node_ips(self) -> None:
        node_ips = self._changes.node.primary
        if node_ips != self._node_ips:
            self._dataplane.set_node_ips(node_ips)
            self._node_ips = node_ips
            self._network_changed = True

    def _follow_peers(self) -> None:
        if self._in_force:
            self._must_publish |= self._probing.follow()

    def _follow_tunnels(self) -> None:
        self._follow_peers()
        if self._in_force:
            self._writer.follow_tunnels()

    def _follow_service_ranges(self) -> None:
        """Runs after Services were written, because it drops all other addresses in the ranges."""
        ranges = self._changes.service_ranges
        if self._in_force and ranges != self._service_ranges:
            self._dataplane.set_service_ranges(ranges)
            self._service_ranges = ranges

    def _follow_pods(self) -> None:
        """Whoever opts out should not wait; all else has time until the rules are looked at."""
        pods, before = self._changes.pod_sockets, self._pods
        if pods != before:
            self._dataplane.set_pods(pods)
            self._pods = pods
            if self._in_force and pods.tc_only != before.tc_only:
                self._timers.start(Task.RULES, 0)

    def _follow_network(self) -> None:
        repair, self._network_changed, self._must_repair = self._must_repair, False, False
        errors = self._network_errors(repair=repair)
        self.status.problems.set(ATTACH, [(at, str(error)) for at, error in errors.items()])
        self._must_publish = True
        if lacks_room(errors.values()):
            self._writer.grow()
        if errors:
            self._timers.start(Task.REPAIR, self._repair_backoff.fail())
        else:
            self._repair_backoff.reset()
            self._timers.start(Task.REPAIR, REPAIR_SECONDS)
        self._timers.ensure(Task.COLLECT, COLLECT_SECONDS)
        self._timers.ensure(Task.RULES, RULES_SECONDS)
        self._serve_health_checks()

    def _follow_rules(self) -> None:
        self._timers.start(Task.RULES, RULES_SECONDS)
        try:
            self._dataplane.follow_rules()
        except MapError:
            raise
        except (EbpflbError, OSError):
            # Looks at the rules again, and reports what is wrong.
            self._network_changed = True

    def _serve_health_checks(self) -> None:
        """Also runs after network changes, because the listen addresses may be new."""
        errors = self._observers.serve_health_checks(self._writer.health_checks)
        self.status.problems.set(HEALTH_CHECK, errors.items())
        self._must_publish = True
        if errors:
            self._timers.start(Task.LISTEN, LISTEN_SECONDS)

    def _network_errors(self, *, repair: bool) -> Errors:
        try:
            return self._dataplane.follow_network(repair=repair)
        except MapError:
            self._network_changed = True
            raise
        except EbpflbError as error:
            return {"network": error}
        except OSError as error:
            return {"network": ProbeError(f"cannot follow devices and addresses: {error}")}

    def _make_room_for_flows(self) -> None:
        is_enough = not self._dataplane.lacks_room_for_flows() or self._writer.grow_flows()
        self._timers.start(Task.ROOM, ROOM_SECONDS if is_enough else NO_ROOM_SECONDS)

    def _prepare_collect(self) -> None:
        self._dataplane.prepare_collect(lambda: self.tell(Wakeup.QUIET))

    def _collect(self) -> None:
        self._dataplane.collect()
        if self._clock() - self._last_write < GRACE_SECONDS:
            self._timers.ensure(Task.COLLECT, COLLECT_SECONDS)

    def _compare(self) -> None:
        ended = self._writer.compare_some()
        self._timers.start(Task.COMPARE, COMPARE_SECONDS if ended else STEP_SECONDS)

    def _expire(self) -> None:
        began = self._clock()
        expired = self._dataplane.expire()
        self._metrics.expired(expired.deleted)
        pause = max(STEP_SECONDS, (self._clock() - began) / EXPIRY_SHARE)
        pause = EXPIRE_SECONDS if expired.finished else min(pause, LONGEST_STEP_SECONDS)
        self._timers.start(Task.EXPIRE, pause)
