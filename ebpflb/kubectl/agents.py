# SPDX-License-Identifier: Apache-2.0
"""Which agent serves which node, according to the API server."""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from ebpflb.errors import ClusterError
from ebpflb.kubectl.access import Access, ForbiddenError, Object

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
    """The agent of a node. A node without an agent has only `node` set."""

    node: str
    namespace: str
    pod: str
    is_ready: bool
    image: str


def find_agents(access: Access, namespace: str = "") -> list[RemoteAgent]:
    """The agents of one namespace, or of all, and the nodes without one. ClusterError.

    Without permission to list nodes, returns only nodes with an agent.
    """
    pods = sorted(_pods(access, namespace), key=_usefulness)
    if not pods:
        where = f"namespace {namespace}" if namespace else "any namespace"
        raise ClusterError(
            f"no agents found: no pod in {where} has the label {LABEL} and a container "
            f"{CONTAINER!r} (is ebpflb installed in this cluster?)"
        )
    # The last one wins: the most useful pod of a node.
    found = {agent.node: agent for agent in map(_agent, pods) if agent.node}
    without = {node: RemoteAgent(node, "", "", False, "") for node in _nodes(access)}
    return [agent for _, agent in sorted((without | found).items())]


def _pods(access: Access, namespace: str) -> Iterator[Object]:
    place = f"namespaces/{quote(namespace)}/" if namespace else ""
    try:
        for pod in access.items(f"/api/v1/{place}pods", [("labelSelector", LABEL)]):
            # Other products have agents, too.
            if any(each["name"] == CONTAINER for each in pod["spec"]["containers"]):
                yield pod
    except ForbiddenError as error:
        hint = (
            ""
            if namespace
            else "; if you may list pods in one namespace only, give --agent-namespace"
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
    return RemoteAgent(node, metadata["namespace"], metadata["name"], _is_ready(pod), image)


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
