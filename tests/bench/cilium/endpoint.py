# SPDX-License-Identifier: Apache-2.0
"""The pods of a lab as endpoints of Cilium, by the agent's API that its CNI plugin also uses.

They keep their devices: the agent attaches its programs to the node's end of each.
"""

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from ebpflb.lab import LabNode, Member
from ebpflb.lab.network import UPLINK
from tests.bench.harness.options import BenchError

_SECONDS = 60.0
# A pod that the API server does not know.
_LABEL = "container:app=bench"


def add(agent: Path, node: LabNode, pod: Member) -> None:
    """Make a pod an endpoint, with its programs attached; `agent`: its socket. BenchError."""
    ours = _device(pod, UPLINK)
    theirs = _device(node, pod.name.replace("pod", "veth"))
    wanted = {
        "state": "waiting-for-identity",
        "sync-build-endpoint": True,
        "labels": [_LABEL],
        "addressing": {"ipv4": pod.ipv4},
        "datapath-configuration": {"external-ipam": True},
        "container-id": pod.name,
        "container-interface-name": UPLINK,
        "mac": ours["address"],
        "interface-name": theirs["ifname"],
        "interface-index": theirs["ifindex"],
        "host-mac": theirs["address"],
    }
    status, text = _ask(agent, "PUT", "/v1/endpoint/0", json.dumps(wanted))
    if status != http.client.CREATED:
        raise BenchError(f"{node.name}: Cilium refuses {pod.name}: {status} {text}")


def are_ready(agent: Path, count: int) -> bool:
    """Whether this many endpoints, including the node itself, have their programs."""
    status, text = _ask(agent, "GET", "/v1/endpoint")
    states = [each["status"]["state"] for each in json.loads(text)] if status < 300 else []
    return states == ["ready"] * count


def is_healthy(agent: Path) -> bool:
    """Whether the agent reports healthy; False as long as it does not respond."""
    try:
        status, text = _ask(agent, "GET", "/v1/healthz")
    except OSError:
        return False
    return status == http.client.OK and json.loads(text)["cilium"]["state"] == "Ok"


def _device(member: Member, name: str) -> dict[str, Any]:
    found = json.loads(member.exec(["ip", "-json", "link", "show", "dev", name]).stdout)
    return dict(found[0])


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(self.host)


def _ask(agent: Path, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    connection = _Connection(str(agent))
    try:
        headers = {"Content-Type": "application/json", "Host": "localhost"}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
