# SPDX-License-Identifier: Apache-2.0
"""Log lines on stderr, as key=value pairs or as JSON objects.

A change of state is one line, a steady state is silent. Values are given as fields:
`_log.info("in sync", extra=fields(services=3))`.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

_ATTRIBUTE = "ebpflb_fields"
_QUOTED = frozenset(' "=\\')


def fields(**values: object) -> dict[str, Any]:
    """The `extra` of a log call."""
    return {_ATTRIBUTE: values}


def set_up(log_format: Literal["text", "json"], verbosity: int) -> None:
    """Send what this program logs to stderr; from verbosity 1 on each sync and each traceback."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(_Formatter(_as_json if log_format == "json" else _as_text, verbosity > 0))
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(logging.DEBUG if verbosity else logging.INFO)
    # stderr may be closed, which must not disturb the agent.
    logging.raiseExceptions = False


class _Formatter(logging.Formatter):
    def __init__(self, render: Callable[[Mapping[str, object]], str], traceback: bool) -> None:
        super().__init__()
        self._render = render
        self._traceback = traceback

    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("ebpflb."),
            "msg": record.getMessage(),
            **getattr(record, _ATTRIBUTE, {}),
        }
        if record.exc_info and record.exc_info[1]:
            error = record.exc_info[1]
            values.setdefault("error", str(error) or type(error).__name__)
            if self._traceback:
                values["traceback"] = self.formatException(record.exc_info)
        return self._render(values)


def _timestamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def _as_json(values: Mapping[str, object]) -> str:
    return json.dumps(values, default=str)


def _as_text(values: Mapping[str, object]) -> str:
    return " ".join(f"{key}={_quote(str(value))}" for key, value in values.items())


def _quote(text: str) -> str:
    if text and text.isprintable() and _QUOTED.isdisjoint(text):
        return text
    return json.dumps(text, ensure_ascii=False)
