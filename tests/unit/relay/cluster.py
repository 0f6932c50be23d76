# SPDX-License-Identifier: Apache-2.0
"""A cluster of two namespaces and two nodes, and what its agents say, also of others."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from msgspec.json import encode

from ebpflb.kubectl.access import Access
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import AgentAnswer, AgentQuestion
from ebpflb.relay.access import ObservedCluster
from ebpflb.relay.answers import Answers
from ebpflb.relay.identity import Viewer
from ebpflb.relay.requests import ApiError, list_request, status_document
from ebpflb.words.observe import PATH
from tests.unit.kubectl.api_server import Objects, node, pod

JANE, ADMIN = Viewer("jane"), Viewer("admin")
# Of the namespace `bank`, of which jane must see nothing.
TELLER, VAULT = "teller-x7", "vault-x7"
TELLER_IP, TELLER_IPV6, VAULT_IP = "10.244.7.7", "fd00:10::77", "10.96.0.77"
NODES = {"a": ("203.0.113.1", "fd00:1::a1"), "b": ("203.0.113.2", "fd00:1::b2")}
HIDDEN = (TELLER, VAULT, TELLER_IP, TELLER_IPV6, VAULT_IP, "203.0.113", "fd00:1::")
SHOP_IP, WEB_IP, OUTSIDE = "10.244.1.5", "10.96.0.10", "198.51.100.7"
PODS = "/api/v1/pods"

Say = Callable[[RemoteAgent, AgentQuestion], AgentAnswer]


class ReviewedAccess(Access):
    """Decides reviews itself: ADMIN may list all, and others what `rights` has, as USER NAMESPACE
    of pods or USER nodes.
    """

    rights: set[str]

    def create(self, path: str, body: Mapping[str, object]) -> Mapping[str, Any]:
        assert path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return {"status": {"allowed": allows(self.rights, body)}}


def allows(rights: set[str], review: Mapping[str, Any]) -> bool:
    user, what = review["spec"]["user"], review["spec"]["resourceAttributes"]
    assert what["verb"] == "list"
    wanted = what["namespace"] if what["resource"] == "pods" else what["resource"]
    return user == ADMIN.name or f"{user} {wanted}" in rights


@dataclass
class Agents:
    """say: what they answer. asked: all questions, with the nodes."""

    say: Say
    asked: list[tuple[str, AgentQuestion]] = field(default_factory=list)

    def answer(self, agent: RemoteAgent, question: AgentQuestion) -> AgentAnswer:
        self.asked.append((agent.node, question))
        return self.say(agent, question)


class Relayed:
    """The relay's answers, without its port."""

    def __init__(self, kubeconfig: str, objects: Objects, say: Say) -> None:
        self.objects = objects
        self.agents = Agents(say)
        self.access = ReviewedAccess(kubeconfig)
        self.access.rights = {"jane shop"}
        self.cluster = ObservedCluster(self.access, "")
        self.answers = Answers(self.cluster, self.agents)

    def allow(self, *rights: str) -> None:
        """From now on; what was read before is forgotten."""
        self.access.rights.update(rights)
        self.cluster = ObservedCluster(self.access, "")
        self.answers = Answers(self.cluster, self.agents)

    def ask(self, what: str, viewer: Viewer = JANE) -> tuple[int, str]:
        """`what`: the end of the path, with parameters. Status and body."""
        request = list_request(f"{PATH}/{what}")
        assert request, what
        try:
            return 200, encode(self.answers.document(request, viewer)).decode()
        except ApiError as error:
            return error.status, encode(status_document(error)).decode()

    def found(self, what: str, viewer: Viewer = JANE) -> dict[str, Any]:
        status, body = self.ask(what, viewer)
        assert status == HTTPStatus.OK, body
        found: dict[str, Any] = json.loads(body)
        return found

    def refused(self, what: str, status: int, viewer: Viewer = JANE) -> str:
        """Why."""
        given, body = self.ask(what, viewer)
        assert given == status, body
        found: dict[str, Any] = json.loads(body)
        assert found["code"] == status
        return str(found["message"])


def objects_of_two() -> Objects:
    found = Objects()
    found.lists["/api/v1/nodes"] = [_node(*each) for each in NODES.items()]
    agents = [_at(pod(name), NODES[name][0]) for name in NODES]
    found.lists[PODS] = [*agents]
    # A Job's pod that has ended keeps the address that another has now.
    ended = _pod("shop", "job-1", TELLER_IP, phase="Succeeded")
    add_pod(found, _pod("bank", TELLER, TELLER_IP, TELLER_IPV6), ended)
    add_pod(found, _pod("shop", "curl", SHOP_IP))
    found.texts["/api/v1/namespaces/shop/services/web"] = json.dumps(
        {"spec": {"ports": [{"port": 80, "nodePort": 30080}]}}
    )
    return found


def add_pod(objects: Objects, *pods: dict[str, Any]) -> None:
    """Pods with one address."""
    objects.selected[f"status.podIP={pods[0]['status']['podIP']}"] = [*reversed(pods)]
    for each in pods:
        names = each["metadata"]
        path = f"/api/v1/namespaces/{names['namespace']}/pods/{names['name']}"
        objects.texts[path] = json.dumps(each)


def host_pod(namespace: str, name: str, address: str) -> dict[str, Any]:
    found = _pod(namespace, name, address)
    return {**found, "spec": {**found["spec"], "hostNetwork": True}}


def _node(name: str, addresses: tuple[str, ...]) -> dict[str, Any]:
    number = 1 if name == "a" else 7
    ranges = [f"10.244.{number}.0/24", "fd00:10::/112"]
    told = [{"type": "InternalIP", "address": each} for each in addresses]
    return {**node(name), "spec": {"podCIDRs": ranges}, "status": {"addresses": told}}


def _at(found: dict[str, Any], address: str) -> dict[str, Any]:
    return {**found, "status": {**found["status"], "podIP": address}}


def _pod(namespace: str, name: str, *addresses: str, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"nodeName": "a"},
        "status": {
            "phase": phase,
            "podIP": addresses[0],
            "podIPs": [{"ip": each} for each in addresses],
        },
    }
