# SPDX-License-Identifier: Apache-2.0
"""Workloads of tests: echo servers, client pods, Services; and requests to them."""

import json
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ebpflb.errors import EbpflbError
from tests.cluster.harness import images
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.place import Place

Object = dict[str, Any]

PORT = 8080
# No shorter: a usual client waits longer, and a lost SYN is retransmitted after a second.
_TIMEOUT = 5
# Longer than any test: loads are stopped.
_LONGEST = "1h"


def echo_container(**fields: Any) -> Object:
    """A server that reports its pod and node, and is ready until it is told to exit."""
    names = {"POD_NAME": "metadata.name", "NODE_NAME": "spec.nodeName"}
    return {
        "name": "echo",
        "image": images.ECHO.name,
        "args": ["serve", "-port", str(PORT)],
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in names.items()
        ],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": PORT}, "periodSeconds": 1},
        # Without a CPU request it would have a tenth of the CPU that a starting agent has.
        "resources": {"requests": {"cpu": "100m"}},
        **fields,
    }


def deployment(name: str, replicas: int = 2, **pod: Any) -> Object:
    """Echo servers spread over the nodes. pod: additional fields of the pod's spec."""
    labels = {"app": name}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    spec = {
        "containers": [echo_container()],
        "terminationGracePeriodSeconds": 10,
        "topologySpreadConstraints": [spread],
        **pod,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def asker(name: str, node: str, **fields: Any) -> Object:
    """A client pod on a node, which also serves. fields: additional fields of its container."""
    spec = {
        "nodeName": node,
        "containers": [echo_container(**fields)],
        "terminationGracePeriodSeconds": 0,
    }
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def service(name: str, app: str | None = None, **spec: Any) -> Object:
    """TCP and UDP port 80 of the echo servers called `app`. spec: additional fields."""
    ports = [
        {"name": protocol.lower(), "port": 80, "targetPort": PORT, "protocol": protocol}
        for protocol in ("TCP", "UDP")
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": app or name}, "ports": ports, **spec},
    }


def apply(cluster: Cluster, namespace: str, objects: Sequence[Object]) -> None:
    """Apply objects in a namespace, which is created if necessary, and wait until they run."""
    top = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    for items in ([top], objects):
        listed = {"apiVersion": "v1", "kind": "List", "items": items}
        cluster.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(listed))
    for item in objects:
        target = f"{item['kind'].lower()}/{item['metadata']['name']}"
        if item["kind"] in {"Deployment", "DaemonSet"}:
            cluster.control_plane.wait("-n", namespace, "rollout", "status", target)
        elif item["kind"] == "Pod":
            ready = ("wait", "--for=condition=Ready", target)
            cluster.control_plane.wait("-n", namespace, *ready)


def field(cluster: Cluster, namespace: str, target: str, path: str) -> str:
    """A field of an object. path: as jsonpath, {.spec.clusterIP}."""
    return cluster.kubectl("-n", namespace, "get", target, "-o", f"jsonpath={path}")


def pods(cluster: Cluster, namespace: str, app: str) -> set[str]:
    """The names of the pods of an app, including terminating ones."""
    path = "jsonpath={.items[*].metadata.name}"
    listed = cluster.kubectl("-n", namespace, "get", "pods", f"--selector=app={app}", "-o", path)
    return set(listed.split())


def ask(place: Place, url: str, times: int = 1) -> list[Object]:
    """The replies of echo servers to a node or to the client; empty if one was missing."""
    ran = place.exec([binary("echo"), "get", "-timeout", "3s", "-times", str(times), url])
    return _answers(ran.stdout) if ran.returncode == 0 else []


def ask_udp(place: Place, target: str) -> list[Object]:
    """The reply to one datagram to HOST:PORT; empty if there was none."""
    return _answers(place.exec([binary("echo"), "udp", "-timeout", "3s", target]).stdout)


def echo_at(place: Place, *question: str) -> list[Object]:
    """The replies that echo prints on a node or the client. EbpflbError if it fails."""
    ran = place.exec([binary("echo"), *question])
    if ran.returncode:
        raise EbpflbError(f"echo {' '.join(question)}: {ran.stderr.strip()}")
    return _answers(ran.stdout)


def ask_from_pod(
    cluster: Cluster, namespace: str, pod: str, url: str, times: int = 1
) -> list[Object]:
    """The replies to a pod. EbpflbError with the failure if one was missing."""
    return echo_in_pod(cluster, namespace, pod, "get", "-timeout", "3s", "-times", str(times), url)


def echo_in_pod(cluster: Cluster, namespace: str, pod: str, *question: str) -> list[Object]:
    """The replies that echo prints in a pod. EbpflbError with its error message if it fails."""
    return _answers(cluster.kubectl("-n", namespace, "exec", pod, "--", "/echo", *question))


@dataclass(frozen=True, slots=True)
class Load:
    """Many connections at the same time, from a node or the client."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, place: Place, url: str, connections: int, *, keep: bool = False) -> Self:
        """A new connection for each request, or with `keep` one connection for all of a worker."""
        options = [f"-connections={connections}", f"-keep={keep}".lower()]
        options += [f"-duration={_LONGEST}", f"-timeout={_TIMEOUT}s"]
        command: list[str | Path] = [binary("echo"), "load", *options, url]
        return cls(place.popen(command, stdout=subprocess.PIPE, text=True))

    def stop(self) -> Object:
        """Stop it: requests, replies by pod, failures by kind, longest_ms."""
        self.process.send_signal(signal.SIGINT)
        counted, _ = self.process.communicate(timeout=120)
        return dict(json.loads(counted))


def _answers(text: str) -> list[Object]:
    return [json.loads(line) for line in text.splitlines()]
