# SPDX-License-Identifier: Apache-2.0
"""Which agent serves which node, according to the API server."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from ebpflb.errors import ClusterError
from ebpflb.kubectl.access import Access, ForbiddenError, Object, Query

CONTAINER = "ebpflb"

LABEL = "app.kubernetes.io/component=agent"
# Labels of nodes that run no DaemonSet pods, or no Linux.
_UNSERVED = {
    ("kubernetes.io/os", "windows"),
    ("type", "virtual-kubelet"),
    ("eks.amazonaws.com/compute-type", "fargate"),
}


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """The agent of a node. A node without an agent has only `node` set.

    address: of its pod, and the node's, "" while unknown.
    """

    node: str
    namespace: str
    pod: str
    is_ready: bool
    image: str
    address: str = ""


class Owner(NamedTuple):
    """A DaemonSet."""

    namespace: str
    uid: str


class FoundAgents(NamedTuple):
    """impostors: pods that look like an agent's, as NAMESPACE/NAME on NODE."""

    agents: list[RemoteAgent]
    impostors: list[str]


def find_agents(access: Access, namespace: str = "") -> FoundAgents:
    """The agents, and the nodes without one. ClusterError.

    Anyone may give a pod the agents' labels: only those count that the agents' DaemonSet has
    created, on the host network, and all in one namespace. Without permission to list nodes,
    returns only nodes with an agent.
    """
    owners = _owners(access, namespace)
    pods = list(_pods(access, namespace))
    ours = [pod for pod in pods if _is_owned(pod, owners)]
    impostors = [pod for pod in pods if not _is_owned(pod, owners)]
    if not ours:
        where = f"namespace {namespace}" if namespace else "any namespace"
        raise ClusterError(
            f"no agents found: no DaemonSet in {where} has pods on the host network with the label "
            f"{LABEL} and a container {CONTAINER!r} (is ebpflb installed in this cluster?)"
        )
    # The last one wins: the most useful pod of a node.
    found = {
        agent.node: agent for agent in map(_agent, sorted(ours, key=_usefulness)) if agent.node
    }
    without = {node: RemoteAgent(node, "", "", False, "") for node in _nodes(access)}
    agents = [agent for _, agent in sorted((without | found).items())]
    return FoundAgents(agents, sorted(map(_shown, impostors)))


def _owners(access: Access, namespace: str) -> set[Owner]:
    """The agents' DaemonSets. ClusterError if they are in several namespaces."""
    found = {
        Owner(each["metadata"]["namespace"], each["metadata"]["uid"])
        for each in _listed(access, "/apis/apps/v1", "daemonsets", namespace)
        if _selects_agents(each) and _is_like_agent(each["spec"]["template"])
    }
    if len(namespaces := sorted({owner.namespace for owner in found})) > 1:
        raise ClusterError(
            f"agents in more than one namespace: {', '.join(namespaces)}: "
            "say which are meant with --agent-namespace"
        )
    return found


def _selects_agents(daemon_set: Object) -> bool:
    label, _, value = LABEL.partition("=")
    return bool(daemon_set["spec"]["selector"].get("matchLabels", {}).get(label) == value)


def _is_like_agent(pod: Object) -> bool:
    """Other products have agents, too."""
    spec = pod["spec"]
    is_ours = any(each["name"] == CONTAINER for each in spec["containers"])
    return is_ours and spec.get("hostNetwork") is True


def _pods(access: Access, namespace: str) -> Iterator[Object]:
    query = [("labelSelector", LABEL)]
    for pod in _listed(access, "/api/v1", "pods", namespace, query):
        if any(each["name"] == CONTAINER for each in pod["spec"]["containers"]):
            yield pod


def _is_owned(pod: Object, owners: Collection[Owner]) -> bool:
    references = pod["metadata"].get("ownerReferences", ())
    namespace = pod["metadata"]["namespace"]
    return _is_like_agent(pod) and any(
        each.get("controller") is True and Owner(namespace, each["uid"]) in owners
        for each in references
    )


def _listed(
    access: Access, api: str, resource: str, namespace: str, query: Query = ()
) -> Iterator[Object]:
    place = f"namespaces/{quote(namespace)}/" if namespace else ""
    try:
        yield from access.items(f"{api}/{place}{resource}", query)
    except ForbiddenError as error:
        hint = (
            ""
            if namespace
            else f"; if you may list {resource} in one namespace only, give --agent-namespace"
        )
        raise ForbiddenError(f"cannot look for agents: {error}{hint}") from error


def _nodes(access: Access) -> Iterator[str]:
    try:
        for node in access.items("/api/v1/nodes"):
            if not _UNSERVED.intersection(node["metadata"].get("labels", {}).items()):
                yield node["metadata"]["name"]
    except ForbiddenError:
        return


def _usefulness(pod: Object) -> tuple[bool, bool, bool, str]:
    """Sort key: ready pods rank highest, then running ones, then those not terminating."""
    metadata, phase = pod["metadata"], pod.get("status", {}).get("phase")
    is_ending = "deletionTimestamp" in metadata
    return _is_ready(pod), phase == "Running", not is_ending, metadata.get("creationTimestamp", "")


def _agent(pod: Object) -> RemoteAgent:
    metadata, spec = pod["metadata"], pod["spec"]
    image = next(each.get("image", "") for each in spec["containers"] if each["name"] == CONTAINER)
    node = spec.get("nodeName", "")
    address = pod.get("status", {}).get("podIP", "")
    return RemoteAgent(
        node, metadata["namespace"], metadata["name"], _is_ready(pod), image, address
    )


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _shown(pod: Object) -> str:
    node = pod["spec"].get("nodeName") or "no node"
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']} on {node}"
