# SPDX-License-Identifier: Apache-2.0
"""Whether the programs may reset connections to Services that they do not know.

While kube-proxy is being replaced, its connections pass our hooks with a Service as destination:
netfilter translates them later. So unknown connections pass until kube-proxy's rules are gone, and
connection tracking has been seen without such a connection. Beside kube-proxy they always pass.
"""

import logging
from collections.abc import Callable, Container, Iterator
from time import monotonic
from typing import NamedTuple

from ebpflb.dataplane.kernel.ctnetlink import translates_to
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import AddrFlag, SettingFlag
from ebpflb.dataplane.layout.records import AddrRecord
from ebpflb.log import fields
from ebpflb.model.address import Address

_log = logging.getLogger("ebpflb.dataplane")

PERIOD_SECONDS = 60.0

_SERVICE = int(AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_EXTERNAL)
_NODE = int(AddrFlag.LB_ADDR_NODE)


class Treatment(NamedTuple):
    """`way`: what becomes of such connections, "reset" or "passed". `why`: for users."""

    way: str
    why: str


class _Look(NamedTuple):
    """What was seen in connection tracking, and when; `time`: how often rules had been here."""

    time: int
    left: bool
    failure: str = ""


class UnknownConnections:
    """Both looks may run in threads of their own; the results are for any thread."""

    def __init__(
        self,
        *,
        is_beside: bool,
        rules: Callable[[], str],
        translated: Callable[[Container[Address]], bool] = translates_to,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`is_beside`: whether another proxy is here for good.

        `rules`: what shows that kube-proxy's are here. `translated`: whether netfilter leads a
        connection to one of these addresses elsewhere. Both raise OSError. `clock`: seconds.
        """
        self._is_beside = is_beside
        self._rules = rules
        self._translated = translated
        self._clock = clock
        # What shows that they are here, or why that is unknown; None before the first look.
        self._sign: str | None = None
        self._times = 0
        self._last: _Look | None = None
        self._due = 0.0
        self._told = self.treatment

    @property
    def treatment(self) -> Treatment:
        if self._is_beside:
            return Treatment("passed", "another proxy serves Services beside this one")
        if self._sign:
            return Treatment("passed", self._sign)
        last = self._last
        if last is None or last.time != self._times:
            return Treatment("passed", "connection tracking has not been looked at yet")
        if last.failure:
            return Treatment("passed", f"connection tracking cannot be read: {last.failure}")
        if last.left:
            return Treatment("passed", "netfilter still translates connections to Services")
        return Treatment("reset", "nothing else translates connections to Services")

    @property
    def flag(self) -> SettingFlag:
        """For lb_settings."""
        return SettingFlag.LB_SETTING_RESETS if self.treatment.way == "reset" else SettingFlag(0)

    def follow_rules(self) -> None:
        """Look for kube-proxy's rules, and log what is new."""
        try:
            sign = self._rules()
            self._sign = f"kube-proxy's rules are here: {sign}" if sign else ""
        except OSError as error:
            self._sign = f"kube-proxy's rules cannot be looked for: {error.strerror or error}"
        if self._sign:
            self._times += 1
            self._due = 0.0
        before, self._told = self._told, self.treatment
        if before != self._told:
            way, why = self._told
            _log.info("unknown connections to Services are %s", way, extra=fields(why=why))

    def look(self, maps: MapSet) -> None:
        """Look at connection tracking if it is time to, and of use. MapError."""
        wanted = self._sign == "" and not self._is_beside and self.treatment.way == "passed"
        if not wanted or self._clock() < self._due:
            return
        time, self._due = self._times, self._clock() + PERIOD_SECONDS
        try:
            self._last = _Look(time, self._translated(frozenset(_for_services_alone(maps))))
        except OSError as error:
            self._last = _Look(time, left=True, failure=error.strerror or str(error))


def _for_services_alone(maps: MapSet) -> Iterator[Address]:
    """The addresses of Services that the node does not have."""
    for _, value in maps["lb_addr_flags"].items():
        found = AddrRecord.unpack(value)
        if found.flags & _SERVICE and not found.flags & _NODE:
            yield found.address
