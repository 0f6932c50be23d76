# SPDX-License-Identifier: Apache-2.0
"""Sums over flows: counts, verdicts, bytes and times."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ebpflb.model.flow import MEASURES, Flow
from ebpflb.words.connections import DROPPED, FAILED, FORWARDED, REFUSED, START

# Times are counted in buckets so that many flows can be added up; four per octave, so values read
# back are at most 10 % off.
_STEPS = 4
_SHORTEST = 1e-6
_MOST_REASONS = 20
_QUANTILES = (("p50", 0.5), ("p95", 0.95))


@dataclass(slots=True)
class Tally:
    """`started` and `ended` may count the same connection: agents record either event, or both.

    measures: for each of MEASURES that a flow has, how many flows are in which bucket.
    """

    started: int = 0
    ended: int = 0
    failed: int = 0
    refused: int = 0
    dropped: int = 0
    sent: int = 0
    received: int = 0
    retransmits: int = 0
    measures: dict[str, Counter[int]] = field(default_factory=dict)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def connections(self) -> int:
        """All of them, including failed ones."""
        return max(self.started, self.ended) + self.refused + self.dropped

    @property
    def problems(self) -> int:
        return self.failed + self.refused + self.dropped

    def count(self, flow: Flow) -> None:
        if flow.event == START:
            self.started += 1
            return
        if flow.verdict in (REFUSED, DROPPED):
            self.refused += flow.verdict == REFUSED
            self.dropped += flow.verdict == DROPPED
        else:
            self.ended += 1
            self.failed += flow.verdict == FAILED
        if flow.verdict != FORWARDED:
            self._count_reason(flow.verdict, flow.why, 1)
        if flow.bytes:
            self.sent += flow.bytes.original
            self.received += flow.bytes.reply
        self.retransmits += flow.retransmits or 0
        for name in MEASURES:
            value = getattr(flow, name)
            if value is not None:
                self.measures.setdefault(name, Counter())[_bucket(value)] += 1

    def add(self, other: "Tally") -> None:
        self.started += other.started
        self.ended += other.ended
        self.failed += other.failed
        self.refused += other.refused
        self.dropped += other.dropped
        self.sent += other.sent
        self.received += other.received
        self.retransmits += other.retransmits
        # Not update(), which is slow to start: there are few buckets, and thousands of tallies.
        for name, buckets in other.measures.items():
            own = self.measures.setdefault(name, Counter())
            for bucket, number in buckets.items():
                own[bucket] += number
        for (verdict, why), number in other.reasons.items():
            self._count_reason(verdict, why, number)

    def _count_reason(self, verdict: str, why: str, number: int) -> None:
        """Reasons are few; beyond a limit, which a bad agent could reach, they count together."""
        key = (verdict, why)
        is_known = key in self.reasons or len(self.reasons) < _MOST_REASONS
        self.reasons[key if is_known else (verdict, "other reasons")] += number

    def plain(self) -> dict[str, Any]:
        """The JSON form for the page."""
        return {
            "connections": self.connections,
            "failed": self.failed,
            "refused": self.refused,
            "dropped": self.dropped,
            "sent": self.sent,
            "received": self.received,
            "retransmits": self.retransmits,
            **{name: _quantiles(buckets) for name, buckets in self.measures.items()},
            "reasons": [
                (f"{verdict}: {why}", number)
                for (verdict, why), number in self.reasons.most_common()
            ],
        }


def total(tallies: Iterable[Tally]) -> Tally:
    made = Tally()
    for each in tallies:
        made.add(each)
    return made


def _bucket(seconds: float) -> int:
    return round(math.log2(max(seconds, _SHORTEST)) * _STEPS)


def _quantiles(buckets: Counter[int]) -> dict[str, float]:
    count = buckets.total()
    found = {}
    for name, share in _QUANTILES:
        left = math.ceil(share * count)
        for bucket in sorted(buckets):
            left -= buckets[bucket]
            if left <= 0:
                found[name] = 2 ** (bucket / _STEPS)
                break
    return found
