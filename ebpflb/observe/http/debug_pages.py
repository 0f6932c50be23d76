# SPDX-License-Identifier: Apache-2.0
"""/configz, /flagz and /statusz: the settings and the age of the agent, in Kubernetes' form."""

import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping

from ebpflb import __version__
from ebpflb.observe.http.server import JSON, Answer, Routes

_WARNING = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility "
    "guarantees and is for debugging purposes only."
)
_MINUTE, _HOUR = 60, 3600


def debug_routes(
    settings: Mapping[str, object],
    others: Iterable[str],
    *,
    wall: Callable[[], float] = time.time,
) -> Routes:
    """`settings`: what is in force, by option. `others`: the paths that are there besides.

    `wall`: seconds since 1970.
    """
    started = wall()
    paths = sorted([*others, "/configz", "/flagz", "/statusz"])
    return {
        "/configz": lambda: Answer(json.dumps({"ebpflb": settings}).encode(), JSON),
        "/flagz": lambda: _page("flagz", [f"{k}={_as_flag(v)}" for k, v in settings.items()]),
        "/statusz": lambda: _page("statusz", _status(started, wall(), paths)),
    }


def _page(name: str, lines: Iterable[str]) -> Answer:
    return Answer("\n".join(["", f"ebpflb {name}", _WARNING, "", *lines, ""]).encode())


def _as_flag(value: object) -> str:
    match value:
        case bool():
            return json.dumps(value)
        case list():
            return ",".join(map(str, value))
        case _:
            return str(value)


def _status(started: float, now: float, paths: Iterable[str]) -> Iterable[str]:
    up = int(now - started)
    hours, minutes, seconds = up // _HOUR, up % _HOUR // _MINUTE, up % _MINUTE
    shown = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(started))
    return (
        f"Started: {shown}",
        f"Up: {hours} hr {minutes:02} min {seconds:02} sec",
        f"Python version: {platform.python_version()}",
        f"Binary version: {__version__}",
        f"Paths: {' '.join(paths)}",
    )
