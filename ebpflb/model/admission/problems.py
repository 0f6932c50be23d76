# SPDX-License-Identifier: Apache-2.0
"""What users are told about the Services that do not get all that they ask for."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from ebpflb.model.admission.addresses import Refusal
from ebpflb.model.service import ServiceName
from ebpflb.words.events import EventReason

_NO_TABLE = (
    "scheduler random instead: the lookup tables of this namespace, or of all, have no more room "
    "(option maglev-table-size)"
)


class ServiceProblem(NamedTuple):
    """What a Service asks for and does not get."""

    service: ServiceName
    event: EventReason
    text: str


def problems(
    invalid: Mapping[ServiceName, Collection[str]],
    refusals: Mapping[ServiceName, Collection[Refusal]],
    without_table: Collection[ServiceName],
) -> Iterator[ServiceProblem]:
    """`invalid`: lines about annotations. In the order of the names."""
    for name in sorted({*invalid, *refusals, *without_table}):
        for line in invalid.get(name, ()):
            yield ServiceProblem(name, EventReason.INVALID_ANNOTATION, line)
        for refusal in refusals.get(name, ()):
            yield ServiceProblem(name, EventReason.ADDRESS_REFUSED, str(refusal))
        if name in without_table:
            yield ServiceProblem(name, EventReason.NO_LOOKUP_TABLE, _NO_TABLE)
