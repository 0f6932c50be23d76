# SPDX-License-Identifier: Apache-2.0
"""A Service with annotations, in the model of one node: ports, endpoints, a backup, connections."""

from collections.abc import Collection, Iterable, Mapping

from ebpflb.model.address import Family, Protocol, SocketAddress
from ebpflb.model.changes import Changes
from ebpflb.model.ending.endings import Endings, EndReason, HeldConnection
from ebpflb.model.endpoint import Endpoint, EndpointSlice, PackedEndpoints, SlicePort
from ebpflb.model.extensions.annotated import Annotated
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.objects.kinds import ApiObject
from ebpflb.model.plan import Choice, Defaults, Frontend, FrontendType
from ebpflb.model.service import (
    Dsr,
    Service,
    ServiceName,
    ServicePort,
    ServicePortName,
    TrafficPolicy,
)
from ebpflb.source.annotations import of_service
from ebpflb.words.annotations import WEIGHTS
from tests.builders import NODE, OTHER_NODE, address, node

WEB, SPARE, PAGE = (
    ServiceName(namespace, name)
    for namespace, name in (("default", "web"), ("default", "spare"), ("shop", "page"))
)
PORT, NODE_PORT, TARGET = 80, 30080, 8080
PROTOCOLS = (Protocol.TCP, Protocol.UDP)
OWN, LENT = (1, 2, 3), (4, 5)
# On the other node.
ELSEWHERE, LENT_ELSEWHERE = 3, 6
GONE = 9
VERSIONS = {1: "v1", 2: "v2", 3: "v1"}
NOW = 1000.0

_PREFIXES = {
    Family.IPV4: {"pod": "10.1.0.", "cluster": "10.96.0.", "outside": "198.51.100."},
    Family.IPV6: {"pod": "fd01::", "cluster": "fd96::", "outside": "2001:db8::"},
}
_NUMBERS = {WEB: 10, SPARE: 20, PAGE: 30}


def place(number: int, family: Family) -> SocketAddress:
    """Of an endpoint."""
    return SocketAddress(address(f"{_PREFIXES[family]['pod']}{number}"), TARGET)


def vip(name: ServiceName, family: Family) -> SocketAddress:
    """The ClusterIP."""
    return SocketAddress(address(f"{_PREFIXES[family]['cluster']}{_NUMBERS[name]}"), PORT)


def ports(name: ServiceName, policy: TrafficPolicy, annotated: Annotated) -> list[ServicePort]:
    """TCP and UDP in both families, with all kinds of frontends."""
    found = []
    for family in Family:
        outside = _PREFIXES[family]["outside"]
        for protocol in PROTOCOLS:
            found.append(
                ServicePort(
                    ServicePortName(*name, protocol.name.lower(), protocol),
                    family,
                    vip(name, family).address,
                    PORT,
                    node_port=NODE_PORT + _NUMBERS[name],
                    external_ips=(address(f"{outside}{_NUMBERS[name] + 1}"),),
                    load_balancer_ips=(address(f"{outside}{_NUMBERS[name] + 2}"),),
                    external_policy=policy,
                    annotated=annotated,
                )
            )
    return found


def slices(name: ServiceName, numbers: Iterable[int], *, ready: bool = True) -> list[EndpointSlice]:
    numbers = tuple(numbers)
    found = []
    for family in Family:
        endpoints = [
            Endpoint(
                place(number, family).address,
                node_name=OTHER_NODE if number in (ELSEWHERE, LENT_ELSEWHERE) else NODE,
                pod=f"{name.namespace}/pod-{number}",
                ready=ready,
            )
            for number in numbers
        ]
        by_protocol = tuple(SlicePort(each.name.lower(), each, TARGET) for each in PROTOCOLS)
        piece = f"{name.name}-{family.name.lower()}"
        packed = PackedEndpoints(endpoints)
        found.append(EndpointSlice(name.namespace, piece, name.name, family, by_protocol, packed))
    return found


class World:
    """default/web with three endpoints of its own, and default/spare with two.

    annotations: those of default/web, with their values as text.
    """

    def __init__(
        self,
        annotations: Mapping[str, str],
        *,
        policy: TrafficPolicy = TrafficPolicy.CLUSTER,
        numbers: Collection[int] = OWN,
        ready: bool = True,
    ) -> None:
        annotated, problems = of_service(dict(annotations))
        assert not problems
        self.service = Service(WEB, tuple(ports(WEB, policy, annotated)))
        self.changes = Changes(NODE, defaults=Defaults(dsr=Dsr.ANNOTATED))
        spare = Service(SPARE, tuple(ports(SPARE, TrafficPolicy.CLUSTER, Annotated())))
        pieces = [*slices(WEB, numbers, ready=ready), *slices(SPARE, LENT)]
        objects: list[ApiObject] = [self.service, spare, *pieces]
        for each in (node(addresses=("192.0.2.1", "2001:db8::a")), *objects):
            self.changes.set(each)
        if WEIGHTS in annotations:
            for number, version in VERSIONS.items():
                labels = (("version", version),)
                self.changes.set(PodLabels("default", f"pod-{number}", labels))
        self.changes.take()

    def plan(self) -> tuple[Frontend, ...]:
        self.changes.take()
        found = self.changes.plan(WEB)
        assert len({each.type for each in found}) == len(FrontendType)
        return found

    def choices(self, protocol: Protocol | None = None) -> list[Choice]:
        """All, or those of one protocol."""
        frontends = [each for each in self.plan() if protocol in (None, each.key.protocol)]
        return [choice for each in frontends for choice in (each.local, each.others)]

    def lend_to(self, name: ServiceName) -> tuple[Frontend, ...]:
        """The plan of a Service without endpoints that has default/web as its backup."""
        asking = Annotated(backup=str(WEB))
        self.changes.set(Service(name, tuple(ports(name, TrafficPolicy.CLUSTER, asking))))
        self.changes.take()
        return self.changes.plan(name)

    def ended(
        self, at: Collection[int], *, age: float, idle: float, is_rehearsal: bool = False
    ) -> list[EndReason]:
        """Why connections of pods to these endpoints are ended, one to each in each family."""
        tcp = ServicePortName(*WEB, "tcp", Protocol.TCP)
        held = [
            HeldConnection(cookie, vip(WEB, family), False, place(number, family), age, idle)
            for family in Family
            for cookie, number in enumerate(at, 1 + 100 * (family is Family.IPV6))
        ]
        endings = Endings(is_rehearsal=is_rehearsal)
        pieces = self.changes.backups.slices(self.service)
        found = endings.choose(self.service, self.plan(), pieces, {tcp: held}, NOW)
        return [each.reason for each in found]
