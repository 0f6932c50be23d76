# SPDX-License-Identifier: Apache-2.0
"""Makes of Gateways and ServiceImports what is planned, while this process holds the lease."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from ebpflb.errors import SourceError
from ebpflb.gateway.lease import RETRY_SECONDS, Lease
from ebpflb.gateway.policy.addresses import Ranges
from ebpflb.gateway.policy.found import Key
from ebpflb.gateway.policy.plan import plan
from ebpflb.gateway.store import ObjectStore
from ebpflb.gateway.writes import ObjectWrite, writes
from ebpflb.log import fields
from ebpflb.source.api import ApiRequest, ConflictError

_log = logging.getLogger("ebpflb.gateway")

# Changes are gathered for as long, and for longer while something cannot be written: what is told
# of that is a change, too.
_GATHERED_SECONDS = (0.1, 5.0)
_AGAIN_SECONDS = (1.0, 60.0)


class ObjectWriter(Protocol):
    """What the controller needs of `Api`."""

    def post(self, request: ApiRequest) -> None: ...

    def patch(self, request: ApiRequest) -> None: ...

    def delete(self, request: ApiRequest) -> None: ...


class GatewayController:
    """run() is for one thread, stop() for any."""

    def __init__(self, api: ObjectWriter, store: ObjectStore, lease: Lease, ranges: Ranges) -> None:
        """`ranges`: from which Gateways may choose their addresses."""
        self._send: dict[str, Callable[[ApiRequest], None]] = {
            "POST": api.post,
            "PATCH": api.patch,
            "DELETE": api.delete,
        }
        self._store = store
        self._lease = lease
        self._ranges = ranges
        self._stopped = threading.Event()
        self._failures = 0
        self._refusals: dict[Key, str] = {}
        # When to write, even if nothing changes.
        self._due = 0.0

    def stop(self) -> None:
        self._stopped.set()
        self._store.changed.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            has_changed = self._store.changed.wait(RETRY_SECONDS)
            if not self._lease.holds():
                # What happens until it does is looked at then.
                self._due = 0.0
                self._stopped.wait(RETRY_SECONDS)
                continue
            if has_changed or time.monotonic() >= self._due:
                self._store.changed.clear()
                self.reconcile()
                self._stopped.wait(self.pause)
        self._lease.release()

    @property
    def pause(self) -> float:
        """Seconds for which changes are gathered."""
        first, last = _GATHERED_SECONDS
        return min(first * 2.0 ** min(self._failures, 10), last)

    def reconcile(self) -> None:
        """Write what is not as it should be. One object that cannot be written costs no other."""
        found = self._store.found()
        if found is None:
            return
        found = replace(found, refusals=self._refusals)
        before, self._refusals = self._refusals, {}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        failed = False
        for each in writes(plan(found, self._ranges, now), found):
            if not self._lease.holds():
                return
            failed |= not self._is_written(each)
        if self._refusals != before:
            # They are told in the status of what the Services are of.
            self._store.changed.set()
        self._failures = self._failures + 1 if failed else 0
        first, last = _AGAIN_SECONDS
        wait = min(first * 2.0 ** min(self._failures - 1, 10), last) if failed else float("inf")
        self._due = time.monotonic() + wait

    def _is_written(self, write: ObjectWrite) -> bool:
        method, path = write.method, write.request.path
        try:
            self._send[method](write.request)
        except ConflictError as error:
            # The watch tells what it is now.
            _log.debug("not written", extra=fields(method=method, path=path, error=str(error)))
            return False
        except SourceError as error:
            if write.service:
                self._refusals[write.service] = str(error)
            _log.warning("cannot write", extra=fields(method=method, path=path, error=str(error)))
            return False
        _log.info("written", extra=fields(method=method, path=path))
        return True
