# SPDX-License-Identifier: Apache-2.0
"""The answer of `ebpflb explain`: what the hooks would do, and whether the model wants that."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.attach.strays import find_strays, served_cgroups, summary
from ebpflb.dataplane.explain.asking import Asking, Model
from ebpflb.dataplane.explain.choice import frontend_in_force
from ebpflb.dataplane.explain.hooks import client_at, host_client, walk
from ebpflb.dataplane.explain.known_flow import flows_of, sockets_to
from ebpflb.dataplane.explain.lookups import Lookups, backend_key
from ebpflb.dataplane.explain.names import find_cluster_ips, frontend_named
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
from ebpflb.dataplane.explain.reach import Silent, trouble, unanswered
from ebpflb.dataplane.explain.steps import Candidate, Client, ClientKind, Step
from ebpflb.dataplane.flows.conntrack import is_full
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.kernel.rtnetlink import device_name, route_to
from ebpflb.dataplane.layout.enums import AddrFlag, BackendFlag, NetnsFlag, word
from ebpflb.errors import AttachError, ConfigError
from ebpflb.model.address import WILDCARD, Protocol, SocketAddress, family_of, format_address
from ebpflb.model.explain import Wanted, differences, wanted
from ebpflb.model.plan import Frontend, FrontendKey
from ebpflb.model.service import ServiceName
from ebpflb.words.connections import Fate

# A change may be written after the maps were read and before the model is asked, which waits for
# it: what it brought is then found by another look.
_LOOKS = 3
_TABLE_IS_FULL = (
    "lb_conntrack is full: a new connection works, but is forgotten after 4 minutes without packets"
)


class _Compared(NamedTuple):
    """What the maps say, and what the model wants of the same connection."""

    steps: Sequence[Step]
    frontend: Frontend | None
    planned: Wanted
    differences: Sequence[str]


def explain(
    maps: MapSet, root: Path, question: ExplainQuestion, model: Model | None, why_no_model: str = ""
) -> Explanation:
    """`root`: of the pins of these maps. ConfigError, MapError, ProbeError."""
    lookups, asking = Lookups(maps), Asking(model, why_no_model)
    target = _target(lookups, asking, question)
    client = _client(lookups, question, target)
    look = _look(lookups, asking, client, target)
    for _ in range(_LOOKS - 1):
        if asking.failed or not look.differences:
            break
        look = _look(lookups, asking, client, target)
    verdict = look.steps[-1].fate
    told = target_answer(target, look.frontend or look.planned.frontend)
    return Explanation(
        _second_set(root, client) or _note(question, client, lookups, look.steps[-1], target),
        _told_client(client),
        told,
        str(verdict),
        _told_kernel(lookups, client, target, look, asking.failures(told.service, told.protocol)),
        ModelAnswer(
            asking.failed,
            plain_frontend(look.planned.frontend),
            look.planned.verdict,
            look.planned.endpoints,
            look.planned.left_out,
            look.planned.backup,
            look.planned.annotations,
        ),
        None if asking.failed else not look.differences,
        look.differences,
    )


def _target(lookups: Lookups, asking: Asking, question: ExplainQuestion) -> FrontendKey:
    end, protocol = question.end, question.wanted_protocol
    if not isinstance(end, ServiceName):
        return FrontendKey(end, int(question.port), protocol or Protocol.TCP)
    families = dict.fromkeys(map(family_of, question.addresses))
    found = find_cluster_ips(end, lookups.maps, asking)
    return frontend_named(end, question.port, protocol, families, found)


def _client(lookups: Lookups, question: ExplainQuestion, target: FrontendKey) -> Client:
    family, port = family_of(target.address), question.source_port
    if not question.addresses:
        return host_client(lookups, family, port)
    for address in question.addresses:
        if family_of(address) is family:
            return client_at(lookups, address, family, port, route_to)
    raise ConfigError(f"SRC has no {family.text} address, but DST is one")


def _look(lookups: Lookups, asking: Asking, client: Client, target: FrontendKey) -> _Compared:
    steps = walk(lookups, client, target, route_to)
    desc = next((step.desc for step in steps if step.desc), None)
    frontend = frontend_in_force(lookups, desc) if desc else None
    owner = ServiceName(*frontend.service[:2]) if frontend else None
    keys = [frontend.key] if frontend else [target]
    if not frontend and lookups.addr_flags_of(target.address) & AddrFlag.LB_ADDR_NODE_PORT:
        keys.append(target._replace(address=WILDCARD[family_of(target.address)]))
    is_outside = client.kind is ClientKind.OUTSIDE
    planned = asking.of(
        lambda changes: wanted(changes, keys, owner, client.address, is_outside=is_outside)
    )
    found = differences(frontend, planned.frontend) if planned else []
    return _Compared(steps, frontend, planned or Wanted(), found)


def _second_set(root: Path, client: Client) -> str:
    """Which other programs of ebpflb a connection of this client passes, and who decides."""
    device = device_name(client.ifindex) if client.ifindex else ""
    passed = {device} if client.kind is ClientKind.OUTSIDE else {device, ""}
    try:
        strays = find_strays(root, served_cgroups(root))
    except AttachError:
        return ""
    met = [each for each in strays if each.device in passed]
    return f"{summary(met)}: see `ebpflb doctor`" if met else ""


def _note(
    question: ExplainQuestion, client: Client, lookups: Lookups, last: Step, target: FrontendKey
) -> str:
    if question.is_pod and client.kind is ClientKind.OUTSIDE:
        return "a pod on another node, which decides first: run explain there too"
    is_tracked = target.protocol is not Protocol.UDP and last.place.startswith("tc ")
    if last.fate is Fate.TRANSLATED and is_tracked and is_full(lookups.maps):
        return _TABLE_IS_FULL
    return ""


def _told_client(client: Client) -> ClientAnswer:
    return ClientAnswer(
        str(client.kind),
        format_address(client.address),
        client.port,
        device_name(client.ifindex) if client.ifindex else "",
        bool(client.netns_flags & NetnsFlag.LB_NETNS_COVERED),
    )


def _told_kernel(
    lookups: Lookups,
    client: Client,
    target: FrontendKey,
    look: _Compared,
    failures: Mapping[SocketAddress, str],
) -> KernelAnswer:
    last = look.steps[-1]
    matched = next((step for step in look.steps if step.desc), None)
    flows = [flow._asdict() for flow in flows_of(lookups.maps, client, target)]
    waiting = flows if target.protocol is not Protocol.UDP else []
    failures, silent = {**unanswered(waiting), **failures}, Silent.now()
    return KernelAnswer(
        verdict=str(last.fate),
        place=last.place,
        reason=word(last.reason) if last.reason else "",
        why=last.why,
        side=str(matched.side or "") if matched else "",
        affinity=last.affinity,
        scheduler=last.scheduler,
        steps=[StepAnswer(step.place, str(step.fate), step.why) for step in look.steps],
        frontend=plain_frontend(look.frontend),
        backends=[_told_backend(each, failures, silent) for each in last.candidates],
        flows=flows,
        sockets=[each._asdict() for each in sockets_to(lookups.maps, target)],
        limits=last.limits,
    )


def _told_backend(
    candidate: Candidate, failures: Mapping[SocketAddress, str], silent: Silent
) -> BackendAnswer:
    record, rewrite = candidate.backend.record, candidate.rewrite
    key = backend_key(record)
    unreached = trouble(key.address, route_to, silent)
    return BackendAnswer(
        address=format_address(key.address),
        port=key.port,
        local=bool(record.flags & BackendFlag.LB_BACKEND_LOCAL),
        terminating=bool(record.flags & BackendFlag.LB_BACKEND_TERMINATING),
        chance=round(candidate.chance, 4),
        masquerade=format_address(rewrite.source) if rewrite.source else "",
        hairpin=rewrite.hairpin,
        via_stack=rewrite.via_stack,
        tunnel=format_address(rewrite.node) if rewrite.node else "",
        lacks_tunnel=rewrite.lacks_tunnel,
        reason=word(rewrite.reason) if rewrite.reason else "",
        trouble=f"is out of reach: {unreached}"
        if unreached
        else failures.get(SocketAddress(key.address, key.port), ""),
        full=candidate.is_full,
    )
