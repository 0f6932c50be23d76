# SPDX-License-Identifier: Apache-2.0
"""What became of a new connection at a moment of the last day, by what this node served then.

The maps of then are gone, so it tells neither the hook, nor the route, nor the source address.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from ebpflb.config.moment import rfc3339_ns
from ebpflb.dataplane.explain.names import frontend_named, planned_cluster_ips
from ebpflb.dataplane.explain.question import (
    BackendAnswer,
    ClientAnswer,
    ExplainQuestion,
    Explanation,
    KernelAnswer,
    ModelAnswer,
    StepAnswer,
    plain_frontend,
    target_answer,
)
from ebpflb.dataplane.explain.steps import NO_LOCAL_PASSES, ClientKind, ClientSide
from ebpflb.dataplane.layout.enums import DropReason, word
from ebpflb.errors import ConfigError
from ebpflb.model.address import (
    WILDCARD,
    Address,
    Protocol,
    SocketAddress,
    family_of,
    format_address,
)
from ebpflb.model.changes import Changes
from ebpflb.model.explain import Wanted, wanted
from ebpflb.model.extensions.vips import Unserved
from ebpflb.model.node import Node
from ebpflb.model.plan import Choice, FrontendKey
from ebpflb.model.service import ServiceName
from ebpflb.model.source_ranges import parse_prefix
from ebpflb.observe.served.then import PastServices, ServedThen
from ebpflb.words.connections import Fate

Failures = Mapping[SocketAddress, str]

_NO_FRONTEND = "no Service had this address and port then"
_NO_SPILL = "whether it spilled over is not kept"
_NO_COUNTS = "how many connections endpoints and clients had is not kept"
_NO_ENTRIES = "which client had which endpoint is not kept"


def explain_past(
    past: PastServices,
    question: ExplainQuestion,
    moment: int,
    own_pods: Collection[Address],
    failures: Callable[[str, str], Failures],
) -> Explanation:
    """`moment`: nanoseconds since 1970. `own_pods`: of this node, today. ConfigError, QueryError.

    `failures`: of a Service and a protocol, at that moment.
    """
    then, target = _target(past, question, moment)
    client = _client(then.changes.node, question, target, own_pods)
    found = _wanted(then.changes, target, client)
    told = target_answer(target, found.frontend)
    outcome = _outcome(then.changes, target, client, found)
    return Explanation(
        "",
        ClientAnswer(
            str(client.kind), format_address(client.address), question.source_port, "", True
        ),
        told,
        str(outcome.fate),
        _kernel(outcome, client, found, failures(told.service, told.protocol)),
        ModelAnswer(
            "",
            plain_frontend(found.frontend),
            found.verdict,
            found.endpoints,
            found.left_out,
            _backup(then.changes, found),
            found.annotations,
        ),
        None,
        (),
        rfc3339_ns(moment),
        then.since,
    )


def _backup(changes: Changes, found: Wanted) -> str:
    service = found.frontend and changes.service(ServiceName(*found.frontend.service[:2]))
    if not service or service.annotated.spill_at is None or not found.backup:
        return found.backup
    return f"{found.backup}; {_NO_SPILL}"


def _target(
    past: PastServices, question: ExplainQuestion, moment: int
) -> tuple[ServedThen, FrontendKey]:
    end, protocol = question.end, question.wanted_protocol
    if not isinstance(end, ServiceName):
        key = FrontendKey(end, int(question.port), protocol or Protocol.TCP)
        return past.with_frontend(key, moment), key
    then = past.named(end, moment)
    if then.changes.service(end) is None:
        raise ConfigError(f"there was no Service {end} then")
    among = planned_cluster_ips(then.changes, end)
    if not among:
        raise ConfigError(f"Service {end} had no ClusterIP then (headless, or not served here)")
    families = dict.fromkeys(map(family_of, question.addresses))
    key = frontend_named(end, question.port, protocol, families, among)
    # Another Service may have had it.
    return past.with_frontend(key, moment), key


class _Client(NamedTuple):
    kind: ClientKind
    address: Address

    @property
    def is_outside(self) -> bool:
        return self.kind is ClientKind.OUTSIDE


def _client(
    node: Node, question: ExplainQuestion, target: FrontendKey, own_pods: Collection[Address]
) -> _Client:
    family = family_of(target.address)
    if not question.addresses:
        return _Client(ClientKind.HOST, node.primary.get(family, WILDCARD[family]))
    for address in question.addresses:
        if family_of(address) is family:
            return _Client(_kind(address, node, own_pods), address)
    raise ConfigError(f"SRC has no {family.text} address, but DST is one")


def _kind(address: Address, node: Node, own_pods: Collection[Address]) -> ClientKind:
    if address in node.addresses:
        return ClientKind.HOST
    is_in_range = any(parse_prefix(text).covers(address) for text in node.pod_ranges)
    return ClientKind.POD if is_in_range or address in own_pods else ClientKind.OUTSIDE


def _wanted(changes: Changes, target: FrontendKey, client: _Client) -> Wanted:
    keys = [target]
    if target.address in changes.node.addresses:
        keys.append(target._replace(address=WILDCARD[family_of(target.address)]))
    return wanted(changes, keys, None, client.address, is_outside=client.is_outside)


class _Outcome(NamedTuple):
    fate: Fate
    why: str = ""
    reason: DropReason | None = None


def _outcome(changes: Changes, target: FrontendKey, client: _Client, found: Wanted) -> _Outcome:
    if found.frontend is None:
        reason = None if found.left_out else _unserved(changes, target.address, client)
        if reason:
            is_refused = reason is DropReason.LB_DROP_UNKNOWN_PORT
            return _ended(Fate.REFUSED if is_refused else Fate.DROPPED, reason)
        return _Outcome(Fate.PASSES, found.left_out or _NO_FRONTEND)
    fate = Fate(found.verdict)
    if fate is Fate.TRANSLATED:
        return _Outcome(fate)
    if fate is Fate.PASSES:
        return _Outcome(fate, NO_LOCAL_PASSES)
    if not found.frontend.admits(client.address):
        return _ended(fate, DropReason.LB_DROP_SOURCE_RANGE)
    is_refused = fate is Fate.REFUSED
    no_local, none = DropReason.LB_DROP_NO_LOCAL_ENDPOINT, DropReason.LB_DROP_NO_ENDPOINT
    return _ended(fate, none if is_refused else no_local)


def _ended(fate: Fate, reason: DropReason) -> _Outcome:
    return _Outcome(fate, reason.sentence, reason)


def _unserved(changes: Changes, address: Address, client: _Client) -> DropReason | None:
    """What ended connections to other ports of the address, as far as that needs no route."""
    services = filter(None, map(changes.served, changes.names()))
    ports = [port for service in services for port in service.ports]
    if address in changes.node.addresses:
        return None
    if any(port.cluster_ip == address for port in ports):
        return DropReason.LB_DROP_UNKNOWN_PORT
    wishes = {
        port.annotated.vip_unserved
        for port in ports
        if client.is_outside and address in (*port.external_ips, *port.load_balancer_ips)
    }
    if Unserved.DROP in wishes:
        return DropReason.LB_DROP_UNSERVED_PORT
    return DropReason.LB_DROP_UNKNOWN_PORT if Unserved.REJECT in wishes else None


def _kernel(outcome: _Outcome, client: _Client, found: Wanted, failures: Failures) -> KernelAnswer:
    side = ClientSide.ELSEWHERE if client.is_outside else ClientSide.THIS_NODE
    backends: list[BackendAnswer] = []
    if found.frontend and outcome.fate is Fate.TRANSLATED:
        choice = found.frontend.others if client.is_outside else found.frontend.local
        backends = _backends(choice, failures)
    return KernelAnswer(
        verdict=str(outcome.fate),
        place="",
        reason=word(outcome.reason) if outcome.reason else "",
        why=outcome.why,
        side=str(side) if found.frontend else "",
        affinity=_NO_ENTRIES if found.frontend and found.frontend.affinity_timeout else "",
        scheduler="",
        steps=[StepAnswer("this node", str(outcome.fate), outcome.why)],
        frontend=plain_frontend(found.frontend),
        backends=backends,
        flows=[],
        sockets=[],
        limits=_NO_COUNTS if found.frontend and any(found.frontend.limits) else "",
    )


def _backends(choice: Choice, failures: Failures) -> list[BackendAnswer]:
    return [
        BackendAnswer(
            address=format_address(each.address),
            port=each.port,
            local=each.local,
            terminating=each.terminating,
            chance=round(share, 4),
            masquerade="",
            hairpin=False,
            via_stack=False,
            tunnel="",
            lacks_tunnel=False,
            reason="",
            trouble=failures.get(SocketAddress(each.address, each.port), ""),
        )
        for each, share in zip(choice.backends, choice.shares, strict=True)
    ]
