# SPDX-License-Identifier: Apache-2.0
"""Who talked to whom, from one flow of `ebpflb flows -o jsonl`.

Flows come from agents, and the names in them from anybody who may create objects: the type of every
value is checked, and strings are cut to the longest valid name.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ebpflb.model.flow import verdict_of
from ebpflb.words.connections import FLOW_EVENTS

LONGEST_NAME = 253
OTHERS: Final = "others"
UNKNOWN = "unknown"

_MOST = 1 << 60
# What controllers append to a pod's name: hashes of Deployments (no vowels, no 0, 1, 3), times of
# CronJobs, numbers of StatefulSets.
_LETTERS = "[bcdfghjklmnpqrstvwxz2456789]"
_SUFFIX = re.compile(rf"(?:-(?:{_LETTERS}{{6,10}}|\d{{8,10}}))?-{_LETTERS}{{5}}$|-\d{{1,4}}$")


class Party(NamedTuple):
    """A client, or the target of its connection. `pod`: the bare name; empty if unknown.

    kind: pod; cluster: a cluster address without a name; outside; nobody: refused or dropped before
    a backend was chosen; others.
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


def read_flow(node: str, flow: Any) -> tuple[Edge, dict[str, Any]]:
    """The edge of a flow, and its values. ValueError if it is not a flow."""
    if not isinstance(flow, dict) or flow.get("event") not in FLOW_EVENTS:
        raise ValueError("not a flow")
    values = _values(node, flow)
    verdict = verdict_of(flow["event"], _text(flow, "ended", 64), _text(flow, "protocol", 8))
    service = _object(flow, "service")
    namespace = _text(service, "namespace")
    name = f"{namespace}/{_text(service, 'name')}" if namespace else values["frontend"]
    edge = Edge(
        client=_client(node, flow),
        service=name,
        namespace=namespace,
        target=_target(flow, verdict, values["why"]),
        node=node,
        verdict=verdict,
    )
    return edge, values | {"verdict": verdict, "service": name}


def workload_of(pod: str) -> str:
    """A pod's name without the suffix from its controller."""
    return _SUFFIX.sub("", pod) or pod


def _values(node: str, flow: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of one flow; every value has been checked."""
    client, volume = _object(flow, "client"), _object(flow, "bytes")
    protocol = _text(flow, "protocol", 8)
    return {
        "time": _text(flow, "time", 35),
        "event": flow["event"],
        "why": _text(flow, "reason", 64) or _text(flow, "ended", 64),
        "node": node,
        "client": _shown(client),
        "asker": _text(client, "pod", 2 * LONGEST_NAME) or _text(client, "address", 45),
        "frontend": f"{_socket(_object(flow, 'frontend'))}/{protocol}",
        "port": _text(_object(flow, "service"), "port"),
        "backend": _shown(_object(flow, "backend")),
        "path": _text(flow, "path", 16),
        "snat": flow.get("snat") is True,
        "hairpin": flow.get("hairpin") is True,
        "seconds": _number(flow, "seconds"),
        "rtt": _number(flow, "rtt_seconds"),
        "sent": int(_number(volume, "original") or 0),
        "received": int(_number(volume, "reply") or 0),
        "retransmits": int(_number(flow, "retransmits") or 0),
    }


def _client(node: str, flow: Mapping[str, Any]) -> Party:
    client = _object(flow, "client")
    is_here = flow.get("source") == "this_node"
    where = _text(client, "node") or (node if is_here else "")
    if _text(client, "pod"):
        return _pod(client, where)
    address = _text(client, "address", 45)
    if is_here:
        return Party("cluster", address or UNKNOWN, node=where, zone=_text(client, "zone"))
    return Party("outside", address or UNKNOWN)


def _target(flow: Mapping[str, Any], verdict: str, why: str) -> Party:
    backend = _object(flow, "backend")
    if not backend:
        return Party("nobody", f"{verdict}: {why.replace('_', ' ') or 'no reason given'}")
    if _text(backend, "pod"):
        return _pod(backend, _text(backend, "node"))
    name = _text(backend, "address", 45) or UNKNOWN
    return Party("cluster", name, node=_text(backend, "node"), zone=_text(backend, "zone"))


def _pod(side: Mapping[str, Any], node: str) -> Party:
    """`pod` is NAMESPACE/NAME. The agent on the pod's own node adds the workload as KIND/NAME."""
    full = _text(side, "pod", 2 * LONGEST_NAME)
    namespace, _, pod = full.rpartition("/")
    workload = _text(side, "workload").rpartition("/")[2] or workload_of(pod)
    return Party("pod", full, namespace, workload, pod, node, _text(side, "zone"))


def _shown(side: Mapping[str, Any]) -> str:
    name, port = _text(side, "pod", 2 * LONGEST_NAME), _number(side, "port")
    if not name:
        return _socket(side)
    return f"{name}:{port:.0f}" if port else name


def _socket(side: Mapping[str, Any]) -> str:
    address, port = _text(side, "address", 45), _number(side, "port")
    if not port:
        return address
    return f"[{address}]:{port:.0f}" if ":" in address else f"{address}:{port:.0f}"


def _object(flow: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = flow.get(name)
    return found if isinstance(found, dict) else {}


def _text(flow: Mapping[str, Any], name: str, longest: int = LONGEST_NAME) -> str:
    found = flow.get(name)
    return found[:longest] if isinstance(found, str) else ""


def _number(flow: Mapping[str, Any], name: str) -> float | None:
    found = flow.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    return found if 0 <= found <= _MOST else None
