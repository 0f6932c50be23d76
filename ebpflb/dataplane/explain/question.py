# SPDX-License-Identifier: Apache-2.0
"""A question of `ebpflb explain`, and its answer, as they travel between command and agent."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from ebpflb.config.values import Number
from ebpflb.model.address import Address, Protocol, parse_address
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
    given. pins: the directory of the maps in question, empty for those of the agent.
    """

    target: str
    source: str = ""
    port: str = ""
    source_port: Annotated[int, Meta(ge=0, le=_LAST_PORT)] = 0
    is_pod: bool = False
    protocol: str = ""
    pins: str = ""

    def __post_init__(self) -> None:
        _ = self.addresses
        if self.protocol not in ("", *Protocol.__members__):
            raise ValueError(f"unknown protocol {self.protocol!r}")
        if not isinstance(self.end, ServiceName):
            _port(self.port)

    @property
    def addresses(self) -> list[Address]:
        return [parse_address(text) for text in self.source.split(",") if text]

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
    """A backend that the connection may get. trouble: why connections to it fail."""

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


class ModelAnswer(Struct, frozen=True):
    """unasked: why there is no model to compare with. The rest is of model/explain.py."""

    unasked: str
    frontend: Plain | None
    verdict: str
    endpoints: Sequence[Plain]
    left_out: str


class Explanation(Struct, frozen=True):
    """The answer. agree: None without a model to compare with. note: about the client."""

    note: str
    client: ClientAnswer
    target: TargetAnswer
    verdict: str
    kernel: KernelAnswer
    model: ModelAnswer
    agree: bool | None
    differences: Sequence[str]
