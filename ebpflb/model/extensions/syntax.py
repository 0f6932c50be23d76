# SPDX-License-Identifier: Apache-2.0
"""The annotations of Services: one table of how each is read and written."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from ebpflb.config import values
from ebpflb.model.extensions.annotated import NOTHING, Annotated
from ebpflb.model.extensions.lifetime import MaxAge, OnEndpointGone, Rebalance
from ebpflb.model.extensions.limits import (
    BUSIEST,
    DROP,
    FASTEST,
    OpenLimit,
    RateLimit,
    rate_limit,
)
from ebpflb.model.extensions.vips import NoLocalEndpoint, Unserved
from ebpflb.model.extensions.weights import HEAVIEST, Share, Weights
from ebpflb.words import annotations as words
from ebpflb.words.backup import EVERY_NAMESPACE
from ebpflb.words.scheduler import Scheduler

T = TypeVar("T")

_PODS = "pods"
_MOST_PER_MINUTE = 60_000
_REBALANCE_FORM = "must be idle DURATION, NUMBER/min, as in idle 30s, 5/min, and perhaps dry-run"


class Syntax(NamedTuple):
    """field: of Annotated. parse: raises ValueError. text: the reverse."""

    field: str
    parse: Callable[[str], object]
    text: Callable[[Any], str] = str


def _one_of(choices: Mapping[str, T]) -> Callable[[str], T]:
    def parse(text: str) -> T:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return choices[text]

    return parse


def _switch_text(is_on: bool) -> str:
    return str(is_on).lower()


SWITCH = _one_of({"true": True, "false": False})
WEIGHT = values.Number(0, HEAVIEST)
_MOST_OPEN = 1_000_000_000
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SERVICE = re.compile(f"({_LABEL.pattern}/)?{_LABEL.pattern}")
SLICE_WEIGHT = values.Number(0, 65535)


def _weights(text: str) -> Weights:
    return Weights() if text == _PODS else Weights(tuple(map(_share, text.split(","))))


def _share(text: str) -> Share:
    label, colon, weight = text.strip().rpartition(":")
    key, equals, value = label.partition("=")
    if not (colon and equals and key.strip()):
        raise ValueError(f"must be {_PODS}, or LABEL=VALUE:WEIGHT, separated by commas")
    return Share(key.strip(), value.strip(), WEIGHT(weight))


def _weights_text(weights: Weights) -> str:
    return ",".join(f"{key}={value}:{weight}" for key, value, weight in weights.shares) or _PODS


_PER_MINUTE = "/min"
_DRY_RUN = "dry-run"


def _rebalance(text: str) -> Rebalance:
    idle: float | None = None
    rate: int | None = None
    is_dry_run = False
    for word in map(str.strip, text.split(",")):
        if word.startswith("idle "):
            idle = values.positive_duration(word.removeprefix("idle "))
        elif word.endswith(_PER_MINUTE):
            rate = values.Number(1, _MOST_PER_MINUTE)(word.removesuffix(_PER_MINUTE))
        elif word == _DRY_RUN:
            is_dry_run = True
        else:
            raise ValueError(_REBALANCE_FORM)
    if idle is None or rate is None:
        raise ValueError(_REBALANCE_FORM)
    return Rebalance(idle, rate, is_dry_run)


def _rebalance_text(wish: Rebalance) -> str:
    words = [f"idle {wish.idle:.12g}s", f"{wish.per_minute}{_PER_MINUTE}"]
    return ", ".join([*words, _DRY_RUN] if wish.is_dry_run else words)


def _max_age(text: str) -> MaxAge:
    seconds, sign, percent = text.replace("+-", "±").partition("±")
    if not sign:
        return MaxAge(values.positive_duration(seconds))
    if not percent.endswith("%"):
        raise ValueError("must be a duration, as in 30m, or with a spread, as in 30m±10%")
    spread = values.Number(0, 100)(percent.removesuffix("%"))
    return MaxAge(values.positive_duration(seconds), spread)


def _max_age_text(limit: MaxAge) -> str:
    return f"{limit.seconds:.12g}s" + (f"±{limit.percent}%" if limit.percent else "")


def _backup(text: str) -> str:
    if not _SERVICE.fullmatch(text):
        raise ValueError("must be the NAME of another Service, or NAMESPACE/NAME")
    return text


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(each.strip() for each in text.split(","))
    if not all(each == EVERY_NAMESPACE or _LABEL.fullmatch(each) for each in names):
        raise ValueError(f"must be names of namespaces, separated by commas, or {EVERY_NAMESPACE}")
    return names


_OPEN_FORM = "must be a number, as in 100, or with drop, as in 100, drop"
_BURST = "burst "
_PER_SECOND = "/s"
_NEW_FORM = (
    "must be NUMBER/s or NUMBER/min, and perhaps burst NUMBER and drop, as in 10/s, burst 50, drop"
)


def _open_limit(text: str) -> OpenLimit:
    number, *words = map(str.strip, text.split(","))
    if words not in ([], [DROP]):
        raise ValueError(_OPEN_FORM)
    return OpenLimit(values.Number(1, _MOST_OPEN)(number), bool(words))


def _rate_limit(text: str) -> RateLimit:
    rate, *words = map(str.strip, text.split(","))
    unit = next((each for each in (_PER_SECOND, _PER_MINUTE) if rate.endswith(each)), "")
    bursts = [each.removeprefix(_BURST) for each in words if each.startswith(_BURST)]
    drops = words.count(DROP)
    if not unit or max(drops, len(bursts)) > 1 or drops + len(bursts) < len(words):
        raise ValueError(_NEW_FORM)
    return rate_limit(
        values.Number(1, FASTEST)(rate.removesuffix(unit)),
        per_minute=unit == _PER_MINUTE,
        burst=values.Number(1, BUSIEST)(bursts[0]) if bursts else 0,
        drops=bool(drops),
    )


OF_SERVICES: Mapping[str, Syntax] = {
    words.SCHEDULER: Syntax("scheduler", _one_of({each.value: each for each in Scheduler})),
    words.EJECTION: Syntax("ejection", values.ejection),
    words.DSR: Syntax("dsr", SWITCH, _switch_text),
    words.RETRY: Syntax("retry", SWITCH, _switch_text),
    words.MAX_CONNECTIONS: Syntax("max_open", _open_limit),
    words.MAX_CONNECTIONS_PER_CLIENT: Syntax("max_open_per_client", _open_limit),
    words.NEW_CONNECTIONS_PER_CLIENT: Syntax("new_per_client", _rate_limit),
    words.WEIGHTS: Syntax("weights", _weights, _weights_text),
    words.REBALANCE: Syntax("rebalance", _rebalance, _rebalance_text),
    words.MAX_CONNECTION_AGE: Syntax("max_age", _max_age, _max_age_text),
    words.ON_ENDPOINT_GONE: Syntax(
        "on_endpoint_gone", _one_of({each.value: each for each in OnEndpointGone})
    ),
    words.BACKUP: Syntax("backup", _backup),
    words.BACKUP_FOR: Syntax("backup_for", _namespaces, ",".join),
    words.SPILL_AT: Syntax("spill_at", values.Number(1, _MOST_OPEN)),
    words.VIP_UNSERVED: Syntax("vip_unserved", _one_of({each.value: each for each in Unserved})),
    words.NO_LOCAL_ENDPOINT: Syntax(
        "no_local_endpoint", _one_of({each.value: each for each in NoLocalEndpoint})
    ),
}


def text_of(annotated: Annotated) -> Mapping[str, str]:
    """The annotations that ask for this."""
    usual = NOTHING
    return {
        name: syntax.text(getattr(annotated, syntax.field))
        for name, syntax in OF_SERVICES.items()
        if getattr(annotated, syntax.field) != getattr(usual, syntax.field)
    }
