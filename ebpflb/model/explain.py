# SPDX-License-Identifier: Apache-2.0
"""Why each endpoint of a Service may or may not be chosen on this node.

Also what the model wants of a new connection, and how a frontend in the kernel differs from the
planned one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from ebpflb.model.address import Address, family_of, format_address
from ebpflb.model.backup.lending import LentPort
from ebpflb.model.backup.told import backup_told
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import NO_WATCH, EjectionState, PortWatch
from ebpflb.model.endpoint import PortEndpoint, endpoints_of
from ebpflb.model.extensions.syntax import text_of
from ebpflb.model.extensions.weighing import Weighing
from ebpflb.model.node import Node
from ebpflb.model.plan import (
    Backend,
    Choice,
    Frontend,
    FrontendKey,
    FrontendType,
    has_weights,
    place_of,
    with_weight,
)
from ebpflb.model.service import Service, ServiceName, ServicePort, TrafficPolicy
from ebpflb.model.traffic_policy import Hints, categorize, ready_near
from ebpflb.words.annotations import PREFIX
from ebpflb.words.backup import BackupUse
from ebpflb.words.connections import Fate

Plain = dict[str, Any]

_COMPARED: Mapping[str, Callable[[Frontend], object]] = {
    "type": lambda frontend: frontend.type,
    "Service": lambda frontend: ServiceName(*frontend.service[:2]),
    "port name": lambda frontend: frontend.service.port,
    "internal traffic policy": lambda frontend: frontend.internal_policy,
    "external traffic policy": lambda frontend: frontend.external_policy,
    "affinity timeout": lambda frontend: frontend.affinity_timeout,
    "source ranges": lambda frontend: ", ".join(map(str, frontend.allowed_sources)) or "none",
    "masquerade": lambda frontend: frontend.masquerade,
    "scheduler": lambda frontend: frontend.scheduler,
    "direct server return": lambda frontend: frontend.dsr,
    "use of the backup": lambda frontend: frontend.backup,
    "unserved ports": lambda frontend: frontend.unserved or "default",
    "retry": lambda frontend: frontend.retry,
    "limits": lambda frontend: str(frontend.limits) or "none",
}


class EndpointVerdict(NamedTuple):
    """Whether new connections from this node may go to an endpoint, and why."""

    endpoint: PortEndpoint
    is_candidate: bool
    why: str


def judge(
    port: ServicePort,
    endpoints: Sequence[PortEndpoint],
    node: Node,
    policy: TrafficPolicy,
    watch: PortWatch = NO_WATCH,
    weighing: Weighing | None = None,
) -> tuple[EndpointVerdict, ...]:
    """Judge every endpoint under one traffic policy, in the given order.

    categorize(), `watch` and `weighing` decide which are candidates; this only words the reasons. A
    policy that no frontend of the port uses has no candidates.
    """
    sets = categorize(port, endpoints, node)
    is_local = policy is TrafficPolicy.LOCAL
    chosen = sets.local if is_local else sets.cluster
    explain = _why_local if is_local else _why_cluster
    is_used = port.uses_local_endpoints if is_local else port.uses_cluster_endpoints
    unused = f"no frontend of this port uses the policy {policy}"
    weighed = with_weight(chosen, weighing)
    ejection_states = watch.states(list(map(place_of, weighed)))

    def verdict(each: PortEndpoint) -> EndpointVerdict:
        why = explain(each, endpoints, node) if is_used else unused
        if each in chosen and each not in weighed:
            return EndpointVerdict(each, False, f"{why}, but its weight is 0")
        found = EndpointVerdict(each, each in chosen, why)
        return _judge_again(found, ejection_states.get(place_of(each)))

    return tuple(map(verdict, endpoints))


def _judge_again(verdict: EndpointVerdict, ejection: EjectionState | None) -> EndpointVerdict:
    if ejection is None:
        return verdict
    if ejection is EjectionState.EJECTED:
        why = f"{verdict.why}, but ejected: connections to it from this node have failed"
        return EndpointVerdict(verdict.endpoint, is_candidate=False, why=why)
    why = f"{verdict.why}, but on trial: it gets a single connection, whose result decides"
    return verdict._replace(why=why)


def _why_local(each: PortEndpoint, endpoints: Sequence[PortEndpoint], node: Node) -> str:
    here = each.endpoint.node_name
    if here != node.name:
        return f"on {f'node {here}' if here else 'no node'}, and the policy is Local"
    own = [other for other in endpoints if other.endpoint.node_name == node.name]
    return _why_condition(each, own, " on this node") or "ready, on this node"


def _why_cluster(each: PortEndpoint, endpoints: Sequence[PortEndpoint], node: Node) -> str:
    condition = _why_condition(each, endpoints, "")
    if condition:
        return condition
    hints, chosen = ready_near(endpoints, node)
    if hints is Hints.NONE:
        return f"ready{_why_no_hints(each, endpoints, node)}"
    place = node.name if hints is Hints.NODE else node.zone
    if each in chosen:
        return f"ready, its hints name this {hints}, {place}"
    target = each.endpoint
    hinted = target.node_hints if hints is Hints.NODE else target.zone_hints
    return f"its hints name {hints} {', '.join(hinted)}, not this {hints}, {place}"


def _why_no_hints(each: PortEndpoint, endpoints: Iterable[PortEndpoint], node: Node) -> str:
    """Why the endpoint's zone hints have no effect; empty if it has none."""
    hinted = ", ".join(each.endpoint.zone_hints)
    if not hinted:
        return ""
    if not node.zone:
        why = f"node {node.name} has no zone label"
    elif all(other.endpoint.zone_hints for other in endpoints if other.endpoint.ready):
        why = f"none name this zone, {node.zone}"
    else:
        why = "some endpoints have none"
    return f"; its hints for zone {hinted} are ignored: {why}"


def _why_condition(each: PortEndpoint, others: Iterable[PortEndpoint], where: str) -> str:
    """What the endpoint's conditions mean; empty if it is ready."""
    target = each.endpoint
    if target.ready:
        return ""
    if not target.terminating:
        return "not ready"
    if not target.serving:
        return "terminating, no longer serving"
    if any(other.endpoint.ready for other in others):
        return f"terminating, while others are ready{where}"
    return f"terminating but still serving, and none is ready{where}"


def _verdict(verdict: EndpointVerdict) -> Plain:
    return {"candidate": verdict.is_candidate, "why": verdict.why}


def _plain_endpoint(each: PortEndpoint, node: Node) -> Plain:
    target, port = each[:2]
    return {
        "address": format_address(target.address),
        "port": port,
        "pod": target.pod,
        "node": target.node_name or "",
        "zone": target.zone,
        "on_this_node": target.node_name == node.name,
        "ready": target.ready,
        "serving": target.serving,
        "terminating": target.terminating,
        "node_hints": list(target.node_hints),
        "zone_hints": list(target.zone_hints),
    }


def encode_frontend(frontend: Frontend) -> Plain:
    """`policy`: which of an endpoint's two verdicts applies to this choice."""
    here, elsewhere = _policies(frontend)
    return {
        **_key(frontend.key),
        "type": str(frontend.type),
        "port_name": frontend.service.port,
        "this_node": _choice(frontend.local, here),
        "elsewhere": _choice(frontend.others, elsewhere),
        "internal_policy": str(frontend.internal_policy),
        "external_policy": str(frontend.external_policy),
        "affinity_timeout": frontend.affinity_timeout,
        "allowed_sources": [str(each) for each in frontend.allowed_sources],
        "masquerade": frontend.masquerade,
        "scheduler": str(frontend.scheduler),
        "dsr": frontend.dsr,
        "backup": str(frontend.backup),
        "unserved": frontend.unserved or "",
        "retry": frontend.retry,
        "limits": str(frontend.limits),
    }


def _policies(frontend: Frontend) -> tuple[TrafficPolicy, TrafficPolicy]:
    """For clients of this node, and for those elsewhere."""
    if frontend.type is FrontendType.CLUSTER_IP:
        return frontend.internal_policy, frontend.internal_policy
    return TrafficPolicy.CLUSTER, frontend.external_policy


def _choice(choice: Choice, policy: TrafficPolicy) -> Plain:
    return {
        "policy": str(policy),
        "backends": [
            {
                "address": format_address(each.address),
                "port": each.port,
                "local": each.local,
                "terminating": each.terminating,
                "ejection": each.ejection.word,
                "share": round(share, 4),
            }
            for each, share in zip(choice.backends, choice.shares, strict=True)
        ],
        "if_empty": str(choice.if_empty),
    }


def _key(key: FrontendKey) -> Plain:
    address, protocol = format_address(key.address), key.protocol.name
    return {"address": address, "port": key.port, "protocol": protocol}


def differences(kernel: Frontend | None, model: Frontend | None) -> list[str]:
    """One line per difference. None: there is no such frontend."""
    if kernel is None and model is None:
        return []
    if kernel is None or model is None:
        has, lacks = ("model", "kernel") if kernel is None else ("kernel", "model")
        return [f"the {has} has this frontend, the {lacks} has not"]
    return [
        *(
            f"{name}: kernel {value(kernel)}, model {value(model)}"
            for name, value in _COMPARED.items()
            if value(kernel) != value(model)
        ),
        *_choice_differences("clients of this node", kernel.local, model.local),
        *_choice_differences("clients elsewhere", kernel.others, model.others),
    ]


def _choice_differences(clients: str, kernel: Choice, model: Choice) -> Iterator[str]:
    # The kernel knows no nodes.
    wanted = {each._replace(node=None) for each in model.backends}
    for each in sorted({*kernel.backends} - wanted):
        yield f"{clients}: backend {_backend(each)} in the kernel alone"
    for each in sorted(wanted - {*kernel.backends}):
        yield f"{clients}: backend {_backend(each)} in the model alone"
    if kernel.if_empty != model.if_empty:
        yield f"{clients}: without a backend kernel {kernel.if_empty}, model {model.if_empty}"


def _backend(backend: Backend) -> str:
    state = f"{', terminating' * backend.terminating}{' of this node' * backend.local}"
    state += f", {backend.ejection.shown}" if backend.ejection else ""
    state += f", weight {backend.weight}" if backend.weight != 1 else ""
    return f"{format_address(backend.address)} port {backend.port}{state}"


class Wanted(NamedTuple):
    """What the model wants of a new connection: the frontend that it meets, and what comes of it.

    verdict: empty without a frontend. endpoints: of its Service port. left_out: why another proxy
    serves the Service, if one does. backup: what the port has of its Service's backup; empty if it
    has none. annotations: those of ebpflb that the Service has.
    """

    frontend: Frontend | None = None
    verdict: str = ""
    endpoints: Sequence[Plain] = ()
    left_out: str = ""
    backup: str = ""
    annotations: str = ""


def wanted(
    changes: Changes,
    keys: Sequence[FrontendKey],
    owner: ServiceName | None,
    client: Address,
    *,
    is_outside: bool,
) -> Wanted:
    """For a connection that meets the first of these frontends that there is.

    `owner`: the Service that has it in the kernel; None if none has. `is_outside`: whether the
    client is elsewhere, not on this node.
    """
    name = owner or next(filter(None, map(changes.owner, keys)), None)
    service = changes.served(name) if name else None
    if service is None:
        return Wanted()
    if why := changes.why_left_out(service):
        return Wanted(left_out=f"{service.name} is left to kube-proxy: {why}")
    planned = {each.key: each for each in changes.plan(service.name)}
    frontend = next((planned[key] for key in keys if key in planned), None)
    if frontend is None:
        return Wanted()
    choice = frontend.others if is_outside else frontend.local
    policy = _policies(frontend)[is_outside]
    port_of = frontend.service, family_of(frontend.key.address)
    # None for its health checks.
    ports = [each for each in service.ports if (each.name, each.family) == port_of]
    return Wanted(
        frontend,
        str(planned_verdict(frontend, choice, client)),
        [
            {**_plain_endpoint(each.endpoint, changes.node), **_verdict(each)}
            for port in ports
            for each in _judged(changes, service, port, policy)
        ],
        backup="".join(backup_told(changes.backups, service, port) for port in ports),
        annotations="; ".join(
            f"{name.removeprefix(PREFIX)}: {text}"
            for name, text in text_of(service.annotated).items()
        ),
    )


def _judged(
    changes: Changes, service: Service, port: ServicePort, policy: TrafficPolicy
) -> Iterator[EndpointVerdict]:
    lent = changes.backups.lent(service)
    slices = sorted(lent.slices, key=attrgetter("name"))
    watch = changes.ejections.watch(port)
    is_weighted = has_weights(service, slices)
    weighing = changes.weighing(service) if is_weighted else None
    endpoints = endpoints_of(port, slices)
    verdicts = judge(port, endpoints, changes.node, policy, watch, weighing)
    of_port = lent.of(port)
    if of_port is None:
        return iter(verdicts)
    lent_here = {place_of(each): each for each in of_port.endpoints}
    return (_judge_lent(each, lent_here.get(place_of(each.endpoint)), of_port) for each in verdicts)


def _judge_lent(
    verdict: EndpointVerdict, endpoint: PortEndpoint | None, lent: LentPort
) -> EndpointVerdict:
    """`endpoint`: as the backup has it; None if it is not of the backup."""
    if endpoint is None:
        return verdict
    if lent.use is BackupUse.NONE:
        return verdict._replace(endpoint=endpoint, why="of the backup, which is not in use")
    return verdict._replace(why=f"{verdict.why}; of the backup")


def planned_verdict(frontend: Frontend, choice: Choice, client: Address) -> Fate:
    """What the model wants for a new connection with this choice."""
    if not frontend.admits(client):
        return Fate.DROPPED
    return Fate.TRANSLATED if choice.backends else choice.if_empty.fate
