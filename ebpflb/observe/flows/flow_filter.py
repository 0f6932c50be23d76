# SPDX-License-Identifier: Apache-2.0
"""The filter of a query for flows."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ebpflb.config.values import FLOW_EVENTS, duration, nearest
from ebpflb.model.address import Address
from ebpflb.model.flow import VERDICTS, Flow, FlowNames
from ebpflb.model.service import ServiceName
from ebpflb.observe.http.query_socket import HttpQueryError

PARAMETERS = ("limit", "follow", "since", "service", "from", "to", "verdict", "event")
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FlowFilter:
    """Conditions that all must hold; None is no condition. earliest: nanoseconds since 1970."""

    service: ServiceName | None = None
    clients: Collection[Address] | None = None
    targets: Collection[Address] | None = None
    verdicts: Collection[str] | None = None
    events: Collection[str] | None = None
    earliest: int = 0

    def matches(self, flow: Flow, names: FlowNames) -> bool:
        return (
            flow.time >= self.earliest
            and _is_one(flow.event, self.events)
            and _is_one(flow.verdict, self.verdicts)
            and _is_one(flow.client and flow.client.address, self.clients)
            and self._has_target(flow)
            and (self.service is None or self.service == _service(names))
        )

    def _has_target(self, flow: Flow) -> bool:
        if self.targets is None or flow.frontend.address in self.targets:
            return True
        return flow.backend is not None and flow.backend.address in self.targets


def parse_filter(
    parameters: Mapping[str, str],
    service: Callable[[str], ServiceName],
    addresses: Callable[[str], Collection[Address]],
    now: int,
) -> FlowFilter:
    """The filter of a query's parameters. HttpQueryError says what is wrong.

    `service` and `addresses` look names up; `now`: nanoseconds since 1970.
    """
    for name in parameters:
        if name not in PARAMETERS:
            raise HttpQueryError(f"unknown parameter {name!r}{nearest(name, PARAMETERS)}")
    given = {name: value for name, value in parameters.items() if value}
    return FlowFilter(
        service=service(given["service"]) if "service" in given else None,
        clients=addresses(given["from"]) if "from" in given else None,
        targets=addresses(given["to"]) if "to" in given else None,
        verdicts=_words("verdict", given, VERDICTS),
        events=_words("event", given, FLOW_EVENTS),
        earliest=now - int(_since(given["since"]) * _SECOND) if "since" in given else 0,
    )


def _words(name: str, given: Mapping[str, str], known: Collection[str]) -> Collection[str] | None:
    if name not in given:
        return None
    words = [word.strip() for word in given[name].split(",")]
    for word in words:
        if word not in known:
            raise HttpQueryError(f"{name}: unknown value {word!r}{nearest(word, known)}")
    return words


def _since(text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise HttpQueryError(f"since: {text!r}: {error}") from error


def _is_one(value: object, wanted: Collection[object] | None) -> bool:
    return wanted is None or value in wanted


def _service(names: FlowNames) -> ServiceName | None:
    return ServiceName(*names.port[:2]) if names.port else None
