# SPDX-License-Identifier: Apache-2.0
"""Conditions in the status of an object."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ebpflb.gateway.policy.objects import StatusCondition

_LONGEST_MESSAGE = 1024


class WantedCondition(NamedTuple):
    """A condition to be told. is_so: whether its status is True."""

    type: str
    is_so: bool
    reason: str
    message: str = ""


def told(
    findings: Iterable[WantedCondition],
    before: Sequence[StatusCondition] | None,
    generation: int,
    now: str,
) -> list[dict[str, Any]]:
    """The conditions with these findings, and those that are of somebody else.

    A condition keeps its time while its status stays. `now`: in RFC 3339.
    """
    known = {each.type: each for each in before or ()}
    found = {
        each.type: _condition(each, known.get(each.type), generation, now) for each in findings
    }
    others = {
        name: _fields(
            (name, each.status, each.reason, each.message),
            each.observed_generation,
            each.last_transition_time,
        )
        for name, each in known.items()
    }
    return list({**others, **found}.values())


def _condition(
    finding: WantedCondition, before: StatusCondition | None, generation: int, now: str
) -> dict[str, Any]:
    status = "True" if finding.is_so else "False"
    stays = before is not None and before.status == status
    since = before.last_transition_time if before and stays else now
    message = finding.message[:_LONGEST_MESSAGE]
    return _fields((finding.type, status, finding.reason, message), generation, since)


def _fields(texts: tuple[str, str, str, str], generation: int, since: str) -> dict[str, Any]:
    names = ("type", "status", "reason", "message")
    return {
        **dict(zip(names, texts, strict=True)),
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }
