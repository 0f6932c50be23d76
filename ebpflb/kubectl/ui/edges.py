# SPDX-License-Identifier: Apache-2.0
"""Who talked to whom in one flow."""

import re
from typing import Final, NamedTuple

from ebpflb.cli.flows import frontend_of
from ebpflb.kubectl.flows import is_redacted
from ebpflb.model.flow import Flow
from ebpflb.words.connections import FLOW_EVENTS, VERDICTS

OTHERS: Final = "others"
HIDDEN: Final = "hidden"
UNKNOWN = "unknown"

# What controllers append to a pod's name: hashes of Deployments (no vowels, no 0, 1, 3), times of
# CronJobs, numbers of StatefulSets.
_LETTERS = "[bcdfghjklmnpqrstvwxz2456789]"
_SUFFIX = re.compile(rf"(?:-(?:{_LETTERS}{{6,10}}|\d{{8,10}}))?-{_LETTERS}{{5}}$|-\d{{1,4}}$")


class Party(NamedTuple):
    """A client, or the target of its connection. `pod`: the bare name; empty if unknown.

    kind: pod; cluster: a cluster address without a name; outside; nobody: refused or dropped before
    a backend was chosen; hidden: who it is may not be seen; others.
    """

    kind: str
    name: str
    namespace: str = ""
    workload: str = ""
    pod: str = ""
    node: str = ""
    zone: str = ""


class Edge(NamedTuple):
    """service: NAMESPACE/NAME, or ADDRESS:PORT/PROTOCOL if no Service has the address any more.

    node: whose agent recorded it. verdict: the same for every flow of the edge.
    """

    client: Party
    service: str
    namespace: str
    target: Party
    node: str
    verdict: str


THE_OTHERS = Party(OTHERS, OTHERS)


def edge_of(flow: Flow) -> Edge:
    """ValueError if the page has no word for what happened."""
    if flow.event not in FLOW_EVENTS or flow.verdict not in VERDICTS:
        raise ValueError(f"unknown event {flow.event!r} or verdict {flow.verdict!r}")
    service = flow.service
    return Edge(
        client=_client(flow),
        service=f"{service.namespace}/{service.name}" if service else frontend_of(flow),
        namespace=service.namespace if service else "",
        target=_target(flow),
        node=flow.node,
        verdict=flow.verdict,
    )


def workload_of(pod: str) -> str:
    """A pod's name without the suffix from its controller."""
    return _SUFFIX.sub("", pod) or pod


def _client(flow: Flow) -> Party:
    client = flow.client
    is_here = flow.source == "this_node"
    node = flow.node if is_here else ""
    if client and client.pod:
        return _pod(client.pod, client.workload, node)
    kind = "cluster" if is_here else "outside"
    return Party(kind, (client and client.address) or UNKNOWN, node=node)


def _target(flow: Flow) -> Party:
    backend = flow.backend
    if backend is None:
        return Party("nobody", f"{flow.verdict}: {flow.why or 'no reason given'}")
    if backend.pod:
        return _pod(backend.pod, backend.workload, backend.node, backend.zone)
    return Party("cluster", backend.address or UNKNOWN, node=backend.node, zone=backend.zone)


def _pod(full: str, workload: str, node: str, zone: str = "") -> Party:
    """`full`: NAMESPACE/NAME. The agent on the pod's own node knows the workload as KIND/NAME.

    The relay leaves out names that may not be seen.
    """
    if is_redacted(full):
        return Party(HIDDEN, full, node=node, zone=zone)
    namespace, _, pod = full.rpartition("/")
    owner = workload.rpartition("/")[2] or workload_of(pod)
    return Party("pod", full, namespace, owner, pod, node, zone)
