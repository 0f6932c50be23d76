# SPDX-License-Identifier: Apache-2.0
"""Agents that filter little, and tell of other namespaces and of nodes whatever they are asked."""

import json
from typing import Any

from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import AgentAnswer, AgentQuestion
from tests.unit.cli.explained import FRONTEND, answered
from tests.unit.cli.explained import backend as explained_backend
from tests.unit.kubectl.answers import (
    backend,
    compact_past,
    compact_services,
    compact_top,
    flow,
    frontend,
    lines,
    service,
)
from tests.unit.relay.cluster import (
    NODES,
    OUTSIDE,
    SHOP_IP,
    TELLER,
    TELLER_IP,
    TELLER_IPV6,
    VAULT,
    VAULT_IP,
    WEB_IP,
)

OF_BANK, OF_SHOP = ("bank", VAULT), ("shop", "web")


def talk(agent: RemoteAgent, question: AgentQuestion) -> AgentAnswer:
    """In place of Answering.answer()."""
    own, own_ipv6 = NODES[agent.node]
    if question.command == "explain":
        source, target = question.arguments
        return _explained(agent, source, target)
    say = {"flows": _flows, "connections": _connections, "services": _services, "top": _top}
    hint = (
        f"unknown pod 'shop/tell' (did you mean bank/{TELLER}?)",
        f"Error: [{own}]:9 and {own_ipv6} know no 'bank/{VAULT}' (of bank/{TELLER})",
    )
    complaint = hint[agent.node == "b"]
    if "at" in question.options:
        return AgentAnswer(agent, 1, _past(), complaint)
    return AgentAnswer(agent, 1, say[question.command](agent), complaint)


def _end(address: str, pod: str = "", **more: Any) -> dict[str, Any]:
    return {"address": address, "port": 4000, "pod": pod, **more}


def _clients(node: str) -> list[dict[str, Any]]:
    """Those that jane may know come last."""
    return [
        _end(TELLER_IP, f"bank/{TELLER}", workload=f"Deployment/{TELLER}"),
        _end(TELLER_IPV6),
        *map(_end, NODES[node]),
        _end(OUTSIDE),
        _end(SHOP_IP, "shop/curl"),
    ]


def _targets(node: str) -> list[dict[str, Any]]:
    """Where they connect to."""
    address = NODES[node][0]
    own = {"namespace": "shop", "name": "web"}
    others = {"namespace": "bank", "name": VAULT}
    return [
        {"service": own, "frontend": {"address": WEB_IP, "port": 80, "type": "ClusterIP"}},
        {"service": own, "frontend": {"address": address, "port": 30080, "type": "NodePort"}},
        {"service": others, "frontend": {"address": VAULT_IP, "port": 80, "type": "ClusterIP"}},
        {"service": None, "frontend": {"address": VAULT_IP, "port": 81}},
    ]


def _flows(agent: RemoteAgent) -> str:
    found: list[dict[str, Any]] = []
    for client in _clients(agent.node):
        for target in _targets(agent.node):
            for backend_of in (_end(TELLER_IP, f"bank/{TELLER}"), _end(SHOP_IP, "shop/curl")):
                number = len(found) % 60
                found.append(flow(number, client=client, backend=backend_of) | target)
    return str(lines(*found))


def _connections(agent: RemoteAgent) -> str:
    state = {"path": "tc", "protocol": "TCP", "state": "established", "age": 9.0}
    found = [
        {**state, "client": client, "backend": client, **target}
        for client in _clients(agent.node)
        for target in _targets(agent.node)
    ]
    return str(lines(*found))


def _services(_: RemoteAgent) -> str:
    own, own_ipv6 = NODES["b"]
    names = {"namespace": "shop", "service": "web"}
    others = {"namespace": "bank", "service": VAULT, "address": VAULT_IP}
    rows = [
        frontend(SHOP_IP, own, **names, address=WEB_IP),
        frontend(f"[{own_ipv6}]", **names, address=own, type="NodePort", port=30080),
        frontend(TELLER_IP, **others),
    ]
    return str(compact_services(*rows))


def _top(_: RemoteAgent) -> str:
    return str(compact_top(*_rates()))


def _past() -> str:
    return str(compact_past(*_rates()))


def _rates() -> list[dict[str, Any]]:
    own = NODES["b"][0]
    troubles = [f"bank/{TELLER} fails", f"{own} fails"]
    backends = [
        backend(TELLER_IP, 1.0, pod=f"bank/{TELLER}"),
        backend(own, 1.0),
        backend(SHOP_IP, 1.0, pod="shop/curl"),
    ]
    return [
        service(*backends, namespace="shop", troubles=troubles),
        service(*backends, namespace="bank", name=VAULT),
    ]


def _explained(agent: RemoteAgent, source: str, target: str) -> AgentAnswer:
    if target.startswith(("shop/", "bank/")) and not target.startswith(
        ("shop/web", f"bank/{VAULT}")
    ):
        hint = f" (did you mean bank/{VAULT}?)"
        name = target.partition(":")[0]
        return AgentAnswer(agent, 1, stderr=f"no Service {name}{hint}")
    own, own_ipv6 = NODES[agent.node]
    is_shops = target.startswith(("shop/web", WEB_IP)) or ":30080" in target
    is_banks = target.startswith((f"bank/{VAULT}", VAULT_IP))
    name = "shop/web" if is_shops else f"bank/{VAULT}" if is_banks else ""
    flows = [{"client_port": 4000, "backend": own, "backend_port": 80}]
    kernel_frontend = {**FRONTEND, "service": name} if name else None
    backends = [
        explained_backend(SHOP_IP, masquerade=own, trouble=f"the next hop {own} on eth0 is silent"),
        explained_backend(own, tunnel=own_ipv6),
        # An address of a node that its object does not have.
        explained_backend(SHOP_IP, masquerade="203.0.113.99"),
    ]
    found = answered(frontend=kernel_frontend, backends=backends, flows=flows)
    found["target"]["service"] = name
    found["note"] = f"packets leave from {own}:80, or [{own_ipv6}]:80"
    found["client"]["address"] = SHOP_IP if "/" in source else source
    found["model"] |= {
        "frontend": {**FRONTEND, "service": f"bank/{VAULT}"},
        "endpoints": [{"address": TELLER_IP, "why": "ready"}],
        "backup": f"new connections go to its backup bank/{VAULT}",
    }
    found["differences"] = [f"Service is {name}, not bank/{VAULT}"]
    return AgentAnswer(agent, 0, json.dumps(found))
