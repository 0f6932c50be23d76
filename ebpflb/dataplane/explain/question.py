# SPDX-License-Identifier: Apache-2.0
"""A question of `ebpflb explain`, and its answer, as they travel between command and agent."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from ebpflb.config.moment import moment
from ebpflb.config.values import Number
from ebpflb.model.address import Address, Protocol, format_address, parse_address
from ebpflb.model.explain import encode_frontend
from ebpflb.model.plan import Frontend, FrontendKey
from ebpflb.model.service import ServiceName

Plain = Mapping[str, Any]
_LAST_PORT = 65535
_port = Number(1, _LAST_PORT)


class ExplainQuestion(
    Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from", "target": "to"}
):
    """Also the parameters of a query. ValueError.

    source: the client's addresses, with commas; empty for the node itself. target: an address, or
    NAMESPACE/NAME of a Service. port: of the target; its name or empty only for a Service.
    source_port: 0 for any. is_pod: the client is a pod that was named. protocol: empty if not
    given. pins: the directory of the maps in question, empty for those of the agent. at: a
    moment() of the past; empty for now.
    """

    target: str
    source: str = ""
    port: str = ""
    source_port: Annotated[int, Meta(ge=0, le=_LAST_PORT)] = 0
    is_pod: bool = False
    protocol: str = ""
    pins: str = ""
    at: str = ""

    def __post_init__(self) -> None:
        _ = self.addresses, self.moment(0)
        if self.protocol not in ("", *Protocol.__members__):
            raise ValueError(f"unknown protocol {self.protocol!r}")
        if not isinstance(self.end, ServiceName):
            _port(self.port)

    @property
    def addresses(self) -> list[Address]:
        return [parse_address(text) for text in self.source.split(",") if text]

    def moment(self, now: int) -> int:
        """`at`, or else `now`: in nanoseconds since 1970. ValueError."""
        return moment(self.at, now) if self.at else now

    @property
    def end(self) -> Address | ServiceName:
        namespace, slash, name = self.target.partition("/")
        return ServiceName(namespace, name) if slash else parse_address(self.target)

    @property
    def wanted_protocol(self) -> Protocol | None:
        return Protocol[self.protocol] if self.protocol else None


class ClientAnswer(Struct, frozen=True):
    """device: where its packets arrive, empty for the node itself."""

    kind: str
    address: str
    port: int
    device: str
    tc_cover: bool


class TargetAnswer(Struct, frozen=True):
    """The last three are empty if it is not a frontend."""

    address: str
    port: int
    protocol: str
    service: str
    port_name: str
    type: str


class StepAnswer(Struct, frozen=True):
    """What one hook does."""

    place: str
    verdict: str
    why: str


class BackendAnswer(Struct, frozen=True):
    """A backend that the connection may get. trouble: why connections to it fail.

    full: it has as many connections as the Service allows.
    """

    address: str
    port: int
    local: bool
    terminating: bool
    chance: float
    masquerade: str
    hairpin: bool
    via_stack: bool
    tunnel: str
    lacks_tunnel: bool
    reason: str
    trouble: str
    full: bool = False


class KernelAnswer(Struct, frozen=True, rename={"side": "from"}):
    """What the maps say. The verdict is that of the last step, which has the backends."""

    verdict: str
    place: str
    reason: str
    why: str
    side: str
    affinity: str
    scheduler: str
    steps: Sequence[StepAnswer]
    frontend: Plain | None
    backends: Sequence[BackendAnswer]
    flows: Sequence[Plain]
    sockets: Sequence[Plain]
    limits: str = ""


class ModelAnswer(Struct, frozen=True):
    """unasked: why there is no model to compare with. The rest is of model/explain.py."""

    unasked: str
    frontend: Plain | None
    verdict: str
    endpoints: Sequence[Plain]
    left_out: str
    backup: str = ""
    annotations: str = ""


class Explanation(Struct, frozen=True):
    """The answer. agree: None without a model to compare with. note: about the client.

    at: the moment in the past, as the time of a Flow, or empty. since: when what was served then
    came into force; empty if that is not known.
    """

    note: str
    client: ClientAnswer
    target: TargetAnswer
    verdict: str
    kernel: KernelAnswer
    model: ModelAnswer
    agree: bool | None
    differences: Sequence[str]
    at: str = ""
    since: str = ""


def target_answer(target: FrontendKey, frontend: Frontend | None) -> TargetAnswer:
    return TargetAnswer(
        format_address(target.address),
        target.port,
        target.protocol.name,
        _service_name(frontend) if frontend else "",
        frontend.service.port if frontend else "",
        str(frontend.type) if frontend else "",
    )


def plain_frontend(frontend: Frontend | None) -> Plain | None:
    """As in KernelAnswer and ModelAnswer."""
    return {**encode_frontend(frontend), "service": _service_name(frontend)} if frontend else None


def _service_name(frontend: Frontend) -> str:
    namespace, name, _, _ = frontend.service
    return f"{namespace}/{name}" if namespace else ""
