# SPDX-License-Identifier: Apache-2.0
"""How many connections each Service has open now, as `kubectl ebpflb top` counts them."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ebpflb.errors import EbpflbError
from ebpflb.kubectl.asking import NO_AGENT
from ebpflb.kubectl.cluster import some
from ebpflb.kubectl.ui.aside import Heard
from ebpflb.model.flow import ServiceRate

AskRates = Callable[[], Heard[list[ServiceRate]]]
"""EbpflbError."""

_PERIOD_SECONDS = 30.0


class ActiveNow(NamedTuple):
    """services: NAMESPACE/NAME -> connections; None if unknown. why: what is missing."""

    services: Mapping[str, int] | None
    why: str = ""

    def of(self, group: str) -> int | None:
        """Of a group of Services: `service:NAMESPACE/NAME` or `namespace:NAME`; else None."""
        kind, _, name = group.partition(":")
        if kind == "namespace":
            return self.passing(name, "")
        return (self.services or {}).get(name) if kind == "service" else None

    def passing(self, namespace: str, service: str) -> int | None:
        """Of a namespace's Services, and of one Service; empty for all."""
        if self.services is None:
            return None
        return sum(
            number
            for name, number in self.services.items()
            if service in ("", name) and namespace in ("", name.partition("/")[0])
        )


UNKNOWN_YET = ActiveNow(None, "not known yet")
OF_THE_PAST = ActiveNow(None, "only known of now")


class ActiveConnections:
    """Asks only while somebody looks, in a thread of its own, every 30 seconds. Thread-safe."""

    def __init__(self, ask: AskRates, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._due = clock()
        self._known = UNKNOWN_YET
        self._asking = threading.Lock()

    def read(self) -> ActiveNow:
        """What was found last; what is old is asked for again, for later readers."""
        if self._clock() >= self._due and self._asking.acquire(blocking=False):
            threading.Thread(target=self._look, name="ebpflb-active", daemon=True).start()
        return self._known

    def _look(self) -> None:
        try:
            self._known = _read(self._ask)
        finally:
            self._due = self._clock() + _PERIOD_SECONDS
            self._asking.release()


def _read(ask: AskRates) -> ActiveNow:
    try:
        found, _, failures = ask()
    except EbpflbError as error:
        return ActiveNow(None, " ".join(str(error).split()))
    sums = Counter[str]()
    for each in found:
        sums[f"{each.namespace}/{each.service}"] += each.active or 0
    without = set().union(*(nodes for why, nodes in failures.items() if why != NO_AGENT))
    return ActiveNow(sums, f"without {some(without)}, no answer" if without else "")
