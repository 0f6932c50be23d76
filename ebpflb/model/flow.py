# SPDX-License-Identifier: Apache-2.0
"""One flow: the values of its record, and the objects that its addresses belong to."""

from dataclasses import dataclass
from typing import NamedTuple

from ebpflb.model.address import Address, Family, family_of
from ebpflb.model.endpoint import Endpoint
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import Service, ServicePort, ServicePortName

FORWARDED, REFUSED, DROPPED = "forwarded", "refused", "dropped"
VERDICTS = (FORWARDED, REFUSED, DROPPED)


class Side(NamedTuple):
    """One end of a connection."""

    address: Address
    port: int


class Traffic(NamedTuple):
    """The traffic of one direction; bytes of payload."""

    packets: int
    bytes: int


class Flow(NamedTuple):
    """The values of a flow record. Texts are empty and other values None if they are not known.

    time: nanoseconds since 1970. event: start, end, refused, dropped. reason: of the last two.
    ended: closed, reset, timed_out, replaced, no_answer, backend_refused. path: socket, tc. source:
    this_node, elsewhere. client: its port 0, or None, where the socket had no address yet.
    seconds: from the start of the flow to its end. rtt: in seconds.
    """

    time: int
    event: str
    reason: str
    ended: str
    protocol: str
    path: str
    source: str
    client: Side | None
    frontend: Side
    backend: Side | None
    internal_policy: str
    external_policy: str
    snat: bool
    hairpin: bool
    seconds: float | None
    original: Traffic | None
    reply: Traffic | None
    rtt: float | None
    retransmits: int | None

    @property
    def family(self) -> Family:
        """The family of the frontend."""
        return family_of(self.frontend.address)

    @property
    def verdict(self) -> str:
        return self.event if self.event in (REFUSED, DROPPED) else FORWARDED


@dataclass(frozen=True, slots=True)
class FlowNames:
    """The objects of a flow. client_pod: NAMESPACE/NAME or empty. local: of the endpoint."""

    port: ServicePortName | None = None
    service: Service | None = None
    endpoint: Endpoint | None = None
    client_pod: str = ""
    local: bool = False

    def service_port(self, flow: Flow) -> ServicePort | None:
        ports = self.service.ports if self.service else ()
        wanted = (self.port, flow.family)
        return next((port for port in ports if (port.name, port.family) == wanted), None)


def frontend_type(port: ServicePort, frontend: Side) -> FrontendType | None:
    """The type of a port's frontend; None if it is not one of them."""
    if frontend.port == port.port:
        if frontend.address == port.cluster_ip:
            return FrontendType.CLUSTER_IP
        if frontend.address in port.load_balancer_ips:
            return FrontendType.LOAD_BALANCER
        if frontend.address in port.external_ips:
            return FrontendType.EXTERNAL_IP
    return FrontendType.NODE_PORT if frontend.port == port.node_port else None


class Counts(NamedTuple):
    """The numbers of struct lb_counts, in its order. bytes: of payload.

    A tuple, because a scrape makes tens of thousands.
    """

    connections: int = 0
    refused: int = 0
    dropped: int = 0
    failed: int = 0
    retransmits: int = 0
    original_packets: int = 0
    original_bytes: int = 0
    reply_packets: int = 0
    reply_bytes: int = 0
