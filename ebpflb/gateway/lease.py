# SPDX-License-Identifier: Apache-2.0
"""A Lease that one of several processes holds, by the rules of client-go's leader election.

Clocks of other machines do not count: a Lease has expired when it has not changed for its duration,
by this machine's clock.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from ebpflb.errors import SourceError
from ebpflb.log import fields
from ebpflb.source.api import ApiRequest, ConflictError, MissingError
from ebpflb.source.api_types import Fields

_log = logging.getLogger("ebpflb.gateway")

DURATION_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15, 10.0, 2.0
_RESOURCE = "leases.coordination.k8s.io"


class LeaseApi(Protocol):
    """What a Lease needs of `Api`."""

    def get(self, request: ApiRequest) -> Fields: ...

    def post(self, request: ApiRequest) -> None: ...

    def patch(self, request: ApiRequest) -> None: ...


class Lease:
    """For one thread. holder: the name of this process."""

    def __init__(
        self,
        api: LeaseApi,
        namespace: str,
        name: str,
        holder: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._holder = holder
        self._clock = clock
        self._due = self._renewed = self._seen_at = -float("inf")
        self._seen = ""
        self._has_it = False

    def holds(self) -> bool:
        """Whether this process holds it now; asks the API server when that is due."""
        now = self._clock()
        if now >= self._due:
            self._due = now + RETRY_SECONDS
            before = self._has_it
            try:
                self._has_it = self._acquired(now)
            except SourceError as error:
                _log.warning("cannot renew the lease", extra=fields(error=str(error)))
            if self._has_it and not before:
                _log.info("leads", extra=fields(lease=self._name, holder=self._holder))
        return self._has_it and self._clock() - self._renewed < RENEW_SECONDS

    def release(self) -> None:
        """Let another process have it at once."""
        if not self.holds():
            return
        try:
            self._api.patch(
                self._request({"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})
            )
        except SourceError as error:
            _log.warning("cannot release the lease", extra=fields(error=str(error)))
        self._has_it = False

    def _acquired(self, now: float) -> bool:
        try:
            found = self._api.get(self._request(None))
        except MissingError:
            return self._created(now)
        spec, version = found.get("spec") or {}, found["metadata"]["resourceVersion"]
        if version != self._seen:
            self._seen, self._seen_at = version, now
        holder = str(spec.get("holderIdentity") or "")
        is_ours = holder == self._holder
        if holder and not is_ours and now - self._seen_at < DURATION_SECONDS:
            return False
        changes = self._spec() if is_ours else {**self._spec(), **self._taken(spec)}
        try:
            metadata = {"resourceVersion": version}
            self._api.patch(self._request({"metadata": metadata, "spec": changes}))
        except ConflictError:
            return False
        self._renewed = now
        return True

    def _created(self, now: float) -> bool:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": {**self._spec(), **self._taken({})},
        }
        try:
            self._api.post(ApiRequest(self._collection, _RESOURCE, {}, body))
        except ConflictError:
            return False
        self._renewed = now
        return True

    def _spec(self) -> Fields:
        return {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": _now(),
        }

    def _taken(self, before: Fields) -> Fields:
        times = before.get("leaseTransitions")
        return {
            "acquireTime": _now(),
            "leaseTransitions": times + 1 if isinstance(times, int) else 0,
        }

    def _request(self, body: Fields | None) -> ApiRequest:
        return ApiRequest(
            f"{self._collection}/{self._name}", _RESOURCE, {}, body, verb="" if body else "get"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
