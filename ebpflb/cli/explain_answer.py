# SPDX-License-Identifier: Apache-2.0
"""The answer of `ebpflb explain`: the walk on the maps beside what the agent's model wants."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from ebpflb.cli.explain_agent import AgentModel
from ebpflb.dataplane.explain.hooks import walk
from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.explain.steps import Client, ClientKind, RouteTo
from ebpflb.dataplane.explain.view import client_view, kernel_view
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.errors import QueryError
from ebpflb.model.address import WILDCARD, family_of, format_address
from ebpflb.model.agreement import differences, expected
from ebpflb.model.plan import FrontendKey

Plain = dict[str, Any]

_POLICIES = ("Cluster", "Local")

# A change that is being written makes them differ for a moment.
_TRIES, _PAUSE_SECONDS = 3, 0.3


def answer(
    lookups: Lookups, agent: AgentModel, client: Client, target: FrontendKey, route: RouteTo
) -> Plain:
    """Everything. `agree`: None where there is no model to compare with. MapError."""

    def attempt() -> Plain:
        kernel = kernel_view(lookups, client, target, walk(lookups, client, target, route))
        model = _model(lookups, agent, client, target, kernel["frontend"])
        return {
            "client": client_view(client),
            "target": _target(target, kernel, model),
            "verdict": kernel["verdict"],
            "kernel": kernel,
            "model": model,
            **_comparison(kernel, model),
        }

    return _repeated(attempt)


def _repeated(attempt: Callable[[], Plain]) -> Plain:
    found = attempt()
    for _ in range(_TRIES - 1):
        if found["agree"] is not False:
            break
        time.sleep(_PAUSE_SECONDS)
        found = attempt()
    return found


def _target(target: FrontendKey, kernel: Plain, model: Plain) -> Plain:
    frontend = kernel["frontend"] or model["frontend"] or {}
    return {
        "address": format_address(target.address),
        "port": target.port,
        "protocol": target.protocol.name,
        "service": frontend.get("service", ""),
        "port_name": frontend.get("port_name", ""),
        "type": frontend.get("type", ""),
    }


def _comparison(kernel: Plain, model: Plain) -> Plain:
    if model["unasked"]:
        return {"agree": None, "differences": []}
    found = differences(kernel["frontend"], model["frontend"])
    return {"agree": not found, "differences": found}


def _model(
    lookups: Lookups,
    agent: AgentModel,
    client: Client,
    target: FrontendKey,
    matched: Plain | None,
) -> Plain:
    """`unasked`: why there is no model. `endpoints`: of the Service port."""
    nothing: Plain = {"unasked": "", "verdict": "", "frontend": None, "endpoints": []}
    try:
        service = _service(lookups, agent, target, matched)
    except QueryError as error:
        return {**nothing, "unasked": str(error)}
    if service is None:
        return nothing
    frontend = _frontend(service, target, matched)
    if frontend is None:
        return nothing
    side = "elsewhere" if client.kind is ClientKind.OUTSIDE else "this_node"
    return {
        "unasked": "",
        "verdict": expected(frontend, side, format_address(client.address)),
        "frontend": frontend,
        "endpoints": _endpoints(service, frontend, frontend[side]["policy"]),
    }


def _service(
    lookups: Lookups, agent: AgentModel, target: FrontendKey, matched: Plain | None
) -> Mapping[str, Any] | None:
    """The Service that the kernel has found, else the one that should have it."""
    if matched:
        return agent.get("services", *matched["service"].split("/", 1))
    owner = _owner(agent, target)
    if owner is None and lookups.addr_flags_of(target.address) & AddrFlag.LB_ADDR_NODE_PORT:
        owner = _owner(agent, target._replace(address=WILDCARD[family_of(target.address)]))
    return agent.get("services", owner["namespace"], owner["name"]) if owner else None


def _owner(agent: AgentModel, key: FrontendKey) -> Mapping[str, Any] | None:
    return agent.get("frontends", format_address(key.address), str(key.port), key.protocol.name)


def _frontend(
    service: Mapping[str, Any], target: FrontendKey, matched: Plain | None
) -> Plain | None:
    wildcard = format_address(WILDCARD[family_of(target.address)])
    addresses = [matched["address"]] if matched else [format_address(target.address), wildcard]
    for address in addresses:
        wanted = (address, target.port, target.protocol.name)
        for each in service["frontends"]:
            if (each["address"], each["port"], each["protocol"]) == wanted:
                return {**each, "service": f"{service['namespace']}/{service['name']}"}
    return None


def _endpoints(service: Mapping[str, Any], frontend: Plain, policy: str) -> list[Plain]:
    family = "IPv6" if ":" in frontend["address"] else "IPv4"
    wanted = (frontend["port_name"], frontend["protocol"], family)
    return [
        {**{key: value for key, value in each.items() if key not in _POLICIES}, **each[policy]}
        for port in service["ports"]
        if (port["name"], port["protocol"], port["family"]) == wanted
        for each in port["endpoints"]
    ]
