# SPDX-License-Identifier: Apache-2.0
"""What users are told about the Services that do not get all that they ask for."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from ebpflb.model.admission.addresses import Refusal
from ebpflb.model.service import ServiceName
from ebpflb.words.events import EventReason

_NO_TABLE = (
    "scheduler random without weights instead: the tables of this namespace, or of all, have no "
    "more room (option maglev-table-size)"
)


_IN_VAIN = "the weights have no effect: no endpoint that may be chosen has one above 0"


class ServiceProblem(NamedTuple):
    """What a Service asks for and does not get."""

    service: ServiceName
    event: EventReason
    text: str


def problems(
    invalid: Mapping[ServiceName, Collection[str]],
    in_vain: Collection[ServiceName],
    refusals: Mapping[ServiceName, Collection[Refusal]],
    without_table: Collection[ServiceName],
) -> Iterator[ServiceProblem]:
    """`invalid`: lines about annotations. `in_vain`: their weights have no effect now.

    In the order of the names.
    """
    for name in sorted({*invalid, *in_vain, *refusals, *without_table}):
        for line in (*invalid.get(name, ()), *[_IN_VAIN] * (name in in_vain)):
            yield ServiceProblem(name, EventReason.INVALID_ANNOTATION, line)
        for refusal in refusals.get(name, ()):
            yield ServiceProblem(name, EventReason.ADDRESS_REFUSED, str(refusal))
        if name in without_table:
            yield ServiceProblem(name, EventReason.NO_LOOKUP_TABLE, _NO_TABLE)
