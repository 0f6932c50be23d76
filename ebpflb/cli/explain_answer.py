# SPDX-License-Identifier: Apache-2.0
"""The answer of `ebpflb explain` as plain values: what the hooks would do, what the model wants."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ebpflb.cli.explain_names import AgentModel
from ebpflb.dataplane.explain.choice import frontend_in_force
from ebpflb.dataplane.explain.hooks import walk
from ebpflb.dataplane.explain.known_flow import flows_of, sockets_to
from ebpflb.dataplane.explain.lookups import Lookups, backend_key
from ebpflb.dataplane.explain.steps import Candidate, Client, ClientKind, RouteTo, Step
from ebpflb.dataplane.kernel.rtnetlink import device_name
from ebpflb.dataplane.layout.enums import AddrFlag, BackendFlag, NetnsFlag, word
from ebpflb.errors import QueryError
from ebpflb.model.address import WILDCARD, family_of, format_address
from ebpflb.model.explain import (
    decode_frontend,
    decode_key,
    differences,
    encode_frontend,
    planned_verdict,
)
from ebpflb.model.plan import Frontend, FrontendKey

Plain = dict[str, Any]

_POLICIES = ("Cluster", "Local")

# Kernel and model differ for a moment while a change is being written.
_TRIES, _PAUSE_SECONDS = 3, 0.3


class ModelAnswer(NamedTuple):
    """unasked: why there is no model to compare with. endpoints: of the Service port.

    left_out: why another proxy serves the Service, if one does.
    """

    unasked: str = ""
    frontend: Frontend | None = None
    verdict: str = ""
    endpoints: Sequence[Plain] = ()
    left_out: str = ""


def answer(
    lookups: Lookups, agent: AgentModel, client: Client, target: FrontendKey, route: RouteTo
) -> Plain:
    """`agree` is None without a model to compare with. MapError."""
    found = _attempt(lookups, agent, client, target, route)
    for _ in range(_TRIES - 1):
        if found["agree"] is not False:
            break
        time.sleep(_PAUSE_SECONDS)
        found = _attempt(lookups, agent, client, target, route)
    return found


def _attempt(
    lookups: Lookups, agent: AgentModel, client: Client, target: FrontendKey, route: RouteTo
) -> Plain:
    steps = walk(lookups, client, target, route)
    desc = next((step.desc for step in steps if step.desc), None)
    frontend = frontend_in_force(lookups, desc) if desc else None
    try:
        model = _ask_model(lookups, agent, client, target, frontend)
    except QueryError as error:
        model = ModelAnswer(unasked=str(error))
    found = differences(frontend, model.frontend) if not model.unasked else []
    return {
        "client": _plain_client(client),
        "target": _plain_target(target, frontend or model.frontend),
        "verdict": str(steps[-1].fate),
        "kernel": _plain_kernel(lookups, client, target, steps, frontend),
        "model": {
            **model._asdict(),
            "frontend": _plain_frontend(model.frontend),
        },
        "agree": None if model.unasked else not found,
        "differences": found,
    }


def _ask_model(
    lookups: Lookups,
    agent: AgentModel,
    client: Client,
    target: FrontendKey,
    in_force: Frontend | None,
) -> ModelAnswer:
    """QueryError."""
    service = _service(lookups, agent, target, in_force)
    if service and (why := service.get("left_out")):
        name = f"{service['namespace']}/{service['name']}"
        return ModelAnswer(left_out=f"{name} is left to kube-proxy: {why}")
    found = _frontend_of(service, target, in_force) if service else None
    if service is None or found is None:
        return ModelAnswer()
    frontend = decode_frontend(found, service)
    is_outside = client.kind is ClientKind.OUTSIDE
    choice = frontend.others if is_outside else frontend.local
    policy = found["elsewhere" if is_outside else "this_node"]["policy"]
    return ModelAnswer(
        "",
        frontend,
        planned_verdict(frontend, choice, client.address).value,
        _endpoints(service, frontend, policy),
    )


def _service(
    lookups: Lookups, agent: AgentModel, target: FrontendKey, in_force: Frontend | None
) -> Mapping[str, Any] | None:
    """The Service found in the kernel, else the one that should have this frontend."""
    if in_force:
        return agent.get("services", *in_force.service[:2])
    owner = _owner(agent, target)
    if owner is None and lookups.addr_flags_of(target.address) & AddrFlag.LB_ADDR_NODE_PORT:
        owner = _owner(agent, _node_port(target))
    return agent.get("services", owner["namespace"], owner["name"]) if owner else None


def _owner(agent: AgentModel, key: FrontendKey) -> Mapping[str, Any] | None:
    return agent.get("frontends", format_address(key.address), str(key.port), key.protocol.name)


def _node_port(key: FrontendKey) -> FrontendKey:
    return key._replace(address=WILDCARD[family_of(key.address)])


def _frontend_of(
    service: Mapping[str, Any], target: FrontendKey, in_force: Frontend | None
) -> Plain | None:
    keys = [in_force.key] if in_force else [target, _node_port(target)]
    by_key: dict[FrontendKey, Plain] = {decode_key(each): each for each in service["frontends"]}
    return next((by_key[key] for key in keys if key in by_key), None)


def _endpoints(service: Mapping[str, Any], frontend: Frontend, policy: str) -> list[Plain]:
    family = family_of(frontend.key.address).text
    wanted = (frontend.service.port, frontend.key.protocol.name, family)
    return [
        {**{key: value for key, value in each.items() if key not in _POLICIES}, **each[policy]}
        for port in service["ports"]
        if (port["name"], port["protocol"], port["family"]) == wanted
        for each in port["endpoints"]
    ]


def _plain_client(client: Client) -> Plain:
    """`device`: where its packets arrive, empty for the node itself."""
    return {
        "kind": str(client.kind),
        "address": format_address(client.address),
        "port": client.port,
        "device": device_name(client.ifindex) if client.ifindex else "",
        "tc_cover": bool(client.netns_flags & NetnsFlag.LB_NETNS_COVERED),
    }


def _plain_target(target: FrontendKey, frontend: Frontend | None) -> Plain:
    return {
        "address": format_address(target.address),
        "port": target.port,
        "protocol": target.protocol.name,
        "service": _service_name(frontend) if frontend else "",
        "port_name": frontend.service.port if frontend else "",
        "type": str(frontend.type) if frontend else "",
    }


def _plain_frontend(frontend: Frontend | None) -> Plain | None:
    return {**encode_frontend(frontend), "service": _service_name(frontend)} if frontend else None


def _service_name(frontend: Frontend) -> str:
    namespace, name, _, _ = frontend.service
    return f"{namespace}/{name}" if namespace else ""


def _plain_kernel(
    lookups: Lookups,
    client: Client,
    target: FrontendKey,
    steps: Sequence[Step],
    frontend: Frontend | None,
) -> Plain:
    last = steps[-1]
    matched = next((step for step in steps if step.desc), None)
    return {
        "verdict": str(last.fate),
        "place": last.place,
        "reason": word(last.reason) if last.reason else "",
        "why": last.why,
        "from": str(matched.side or "") if matched else "",
        "affinity": last.affinity,
        "scheduler": last.scheduler,
        "steps": [
            {"place": step.place, "verdict": str(step.fate), "why": step.why} for step in steps
        ],
        "frontend": _plain_frontend(frontend),
        "backends": [_plain_candidate(each) for each in last.candidates],
        "flows": [flow._asdict() for flow in flows_of(lookups.maps, client, target)],
        "sockets": [each._asdict() for each in sockets_to(lookups.maps, target)],
    }


def _plain_candidate(candidate: Candidate) -> Plain:
    record, rewrite = candidate.backend.record, candidate.rewrite
    key = backend_key(record)
    return {
        "address": format_address(key.address),
        "port": key.port,
        "local": bool(record.flags & BackendFlag.LB_BACKEND_LOCAL),
        "terminating": bool(record.flags & BackendFlag.LB_BACKEND_TERMINATING),
        "chance": round(candidate.chance, 4),
        "masquerade": format_address(rewrite.source) if rewrite.source else "",
        "hairpin": rewrite.hairpin,
        "via_stack": rewrite.via_stack,
        "tunnel": format_address(rewrite.node) if rewrite.node else "",
        "lacks_tunnel": rewrite.lacks_tunnel,
        "reason": word(rewrite.reason) if rewrite.reason else "",
    }
