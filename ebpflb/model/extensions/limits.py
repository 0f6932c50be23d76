# SPDX-License-Identifier: Apache-2.0
"""Limits: how many connections endpoints and clients of a Service port may have on a node."""

from collections.abc import Sequence
from typing import NamedTuple

# Of new connections: the interval between two is whole nanoseconds, and says which rate it was.
FASTEST = 10_000
BUSIEST = 1_000_000
_SECOND = 1_000_000_000
_MINUTE = 60
_UNITS = {1: "s", _MINUTE: "min"}
DROP = "drop"


class OpenLimit(NamedTuple):
    """most: open connections. drops: one more is dropped instead of refused."""

    most: int
    drops: bool = False

    def __str__(self) -> str:
        """As the annotation has it."""
        return _joined(str(self.most), drops=self.drops)


class RateLimit(NamedTuple):
    """New connections: `number` in 1 or 60 seconds, with a burst of so many at once.

    drops: one more is dropped instead of refused.
    """

    number: int
    seconds: int
    burst: int
    drops: bool = False

    @property
    def interval(self) -> int:
        """Nanoseconds from one to the next."""
        return self.seconds * _SECOND // self.number

    @property
    def ahead(self) -> int:
        """By how many nanoseconds a client may be ahead of its rate."""
        return (self.burst - 1) * self.interval

    @property
    def rate(self) -> str:
        return f"{self.number}/{_UNITS[self.seconds]}"

    def __str__(self) -> str:
        """As the annotation has it."""
        return _joined(self.rate, f"burst {self.burst}", drops=self.drops)


def rate_limit(number: int, *, per_minute: bool, burst: int = 0, drops: bool = False) -> RateLimit:
    """The one way to write it: 60 a minute are 1 a second. burst: 0 for that of one second."""
    seconds = _MINUTE if per_minute else 1
    usual = max(1, number // seconds)
    if not number % seconds:
        number, seconds = number // seconds, 1
    return RateLimit(number, seconds, burst or usual, drops)


def rate_limit_of(interval: int, ahead: int, *, drops: bool) -> RateLimit:
    """The reverse of the properties of rate_limit()."""
    burst = ahead // interval + 1
    each_second = rate_limit(round(_SECOND / interval) or 1, per_minute=False, burst=burst)
    if each_second.interval != interval:
        each_minute = round(_MINUTE * _SECOND / interval) or 1
        return rate_limit(each_minute, per_minute=True, burst=burst, drops=drops)
    return each_second._replace(drops=drops)


class Limits(NamedTuple):
    """per_endpoint, per_client: open connections. new_per_client: those that a client begins."""

    per_endpoint: OpenLimit | None = None
    per_client: OpenLimit | None = None
    new_per_client: RateLimit | None = None

    @property
    def counts_open(self) -> bool:
        """Whether open connections must be counted."""
        return bool(self.per_endpoint or self.per_client)

    @property
    def are_of_clients(self) -> bool:
        """Whether any is for each client."""
        return bool(self.per_client or self.new_per_client)

    def __str__(self) -> str:
        """For people; empty without any."""
        told = (
            _told(self.per_endpoint, "open per endpoint"),
            _told(self.per_client, "open per client"),
            _told(self.new_per_client, "new per client"),
        )
        return ", ".join(filter(None, told))


NO_LIMITS = Limits()


def _told(limit: OpenLimit | RateLimit | None, what: str) -> str:
    if not limit:
        return ""
    beyond = ["dropped beyond"] * limit.drops
    if isinstance(limit, OpenLimit):
        return f"{limit.most} {what}{_aside(beyond)}"
    return f"{limit.rate} {what}{_aside([f'bursts of {limit.burst}', *beyond])}"


def _aside(words: Sequence[str]) -> str:
    return f" ({', '.join(words)})" if words else ""


def _joined(*words: str, drops: bool) -> str:
    return ", ".join([*words, DROP] if drops else words)
