# SPDX-License-Identifier: Apache-2.0
"""A moment in the past, as people write it and as programs tell it each other."""

import re
import time
from datetime import datetime, timedelta
from functools import lru_cache

from ebpflb.config.values import duration

WINDOW_SECONDS = 60.0
"""The length of a window() unless it is given."""
_SECOND = 1_000_000_000
_LONGEST_WINDOW = 24 * 3600
_CLOCK = re.compile(r"\d\d:\d\d(:\d\d)?", re.ASCII)
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d)(?:(:\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:\d\d)?", re.ASCII
)
_WANTED = "want a time, as in 03:10 or 2026-11-24T03:10, or how long ago, as in 10m"


def moment(value: object, now: int) -> int:
    """Nanoseconds since 1970. `now`: the same of the present. ValueError.

    10m: so long ago. 03:10, 03:10:30: the last time it was that late. 2026-11-24T03:10, with or
    without seconds, a fraction of them and a zone. Without a zone it is local time.
    """
    text = str(value).strip()
    try:
        if _CLOCK.fullmatch(text):
            return _last(text, datetime.fromtimestamp(now / _SECOND))
        if found := _DATE.fullmatch(text):
            minute, second, fraction, zone = found.groups("")
            whole = datetime.fromisoformat(f"{minute}{second}{zone}")
            return _nanoseconds(whole) + int(fraction.ljust(9, "0"))
        return max(now - int(duration(value) * _SECOND), 0)
    except (ValueError, OverflowError) as error:
        raise ValueError(_WANTED) from error


def _last(clock: str, now: datetime) -> int:
    today = datetime.fromisoformat(f"{now:%Y-%m-%d}T{clock}")
    return _nanoseconds(today if today <= now else today - timedelta(days=1))


def _nanoseconds(when: datetime) -> int:
    """Of a whole second."""
    return max(round(when.timestamp()), 0) * _SECOND


def is_ago(text: str) -> bool:
    """Whether a moment is written as how long ago, and not as a time."""
    return not (_CLOCK.fullmatch(text.strip()) or _DATE.fullmatch(text.strip()))


def window(value: object) -> float:
    """The length of a time in the past, in seconds. ValueError."""
    seconds = duration(value)
    if not 1 <= seconds <= _LONGEST_WINDOW:
        raise ValueError("want from 1s to 24h")
    return seconds


def span(end: int, seconds: float) -> tuple[str, str]:
    """When so many seconds before `end` began and ended; `end`: nanoseconds since 1970."""
    return rfc3339_ns(max(end - int(seconds * _SECOND), 0)), rfc3339_ns(end)


def rfc3339_ns(when: int) -> str:
    """Nanoseconds since 1970 as RFC 3339 with nanoseconds, in UTC."""
    seconds, rest = divmod(when, _SECOND)
    return f"{_second(seconds)}.{rest:09d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def local(text: str) -> datetime:
    """A time as of rfc3339_ns(), in the zone of whoever reads it. ValueError: February 30."""
    return datetime.fromisoformat(f"{text[:26]}+00:00").astimezone()
