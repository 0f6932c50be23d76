# SPDX-License-Identifier: Apache-2.0
"""The compact answer of `ebpflb top --at`: what Services carried in the past, by flow records."""

from collections.abc import Iterable
from dataclasses import replace

from msgspec import Struct
from msgspec.json import Decoder

from ebpflb.model.compact import Count
from ebpflb.model.flow import BackendRate, ServiceRate, Word


class RecordedTime(Struct, kw_only=True):
    """What is known of a time by flow records.

    begin, end: as the time of a Flow. count: of these Services' records in between. lost: how many
    could not be made or kept then, of any Service; None if unknown. sample: one flow in so
    many has records; 0: none, except those that are refused or dropped. oldest: the time from which
    on there are records, "" for none.
    """

    begin: Word
    end: Word
    count: Count = 0
    lost: Count | None = 0
    sample: Count = 1
    oldest: Word = ""


class PastRates(Struct):
    """services: as of_records() leaves them."""

    records: RecordedTime
    services: list[ServiceRate]


decode_past = Decoder(PastRates).decode


def together(begin: str, end: str, nodes: Iterable[RecordedTime]) -> RecordedTime:
    """What all nodes know; `sample` and `oldest` are those of the one that knows least."""
    found = RecordedTime(begin=begin, end=end)
    for each in nodes:
        found.count += each.count
        is_known = found.lost is not None and each.lost is not None
        found.lost = (found.lost or 0) + (each.lost or 0) if is_known else None
        found.sample = max(found.sample, each.sample) if found.sample and each.sample else 0
        found.oldest = max(found.oldest, each.oldest)
    return found


def of_records(rate: ServiceRate) -> ServiceRate:
    """Without what flow records cannot tell, which is None: what was open, or not chosen."""
    backends = tuple(map(_of_records, rate.backends))
    return replace(
        rate,
        active=None,
        endpoints=None,
        largest_share=None,
        even_share=None,
        backends=backends,
    )


def _of_records(backend: BackendRate) -> BackendRate:
    return replace(backend, active=None, share=None)
