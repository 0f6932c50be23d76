# SPDX-License-Identifier: Apache-2.0
"""The second part of the demo: endpoints come and go, an agent dies, and no connection fails."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ebpflb.lab.agents import NodeAgent
from ebpflb.lab.cluster import Lab
from ebpflb.lab.demo_rows import Row
from ebpflb.lab.load import LoadResult
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import Member
from ebpflb.lab.traffic import LoadRun

SPEC = ServiceSpec("rolling", 24, "NodePort", node_port=30102)
GRACE_SECONDS = 2.0

_FILE = "demo-rolling.yaml"
_RATE = 150.0
_BEFORE_SECONDS = 1.0
_SETTLE_SECONDS = 0.5

Running = Mapping[str, LoadRun]


def rows(lab: Lab, agents: Mapping[str, NodeAgent]) -> Iterator[Row]:
    """A backend is added, another one goes; then an agent is killed and comes back."""
    first, *middle, last = lab.pods
    _write(lab, [first, *middle])
    time.sleep(_SETTLE_SECONDS)
    running = _start(lab)
    time.sleep(_BEFORE_SECONDS)
    _write(lab, lab.pods)
    time.sleep(_BEFORE_SECONDS)
    _end_gracefully(lab, first)
    time.sleep(_BEFORE_SECONDS)
    what = f"backend {last.name} added, {first.name} terminating for {GRACE_SECONDS:.0f} s and gone"
    yield from _stop(what, running, expected=last.name)

    running = _start(lab)
    time.sleep(_BEFORE_SECONDS)
    agents["node1"].kill()
    time.sleep(_BEFORE_SECONDS)
    agents["node1"].start()
    agents["node1"].wait_in_sync()
    time.sleep(_BEFORE_SECONDS)
    yield from _stop("agent of node1 killed (SIGKILL) and restarted", running, expected=last.name)


def _end_gracefully(lab: Lab, pod: Member) -> None:
    """As Kubernetes does it: terminating, still serving; then the process ends; then it is gone."""
    _write(lab, lab.pods, terminating=pod)
    time.sleep(GRACE_SECONDS)
    server = next(row.pid for row in lab.status() if row.name == pod.name)
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, signal.SIGTERM)
    _write(lab, [other for other in lab.pods if other is not pod])


def _write(lab: Lab, pods: Sequence[Member], terminating: Member | None = None) -> None:
    objects = lab.service(SPEC, pods)
    for endpoint in (each for item in objects for each in item.get("endpoints", ())):
        if terminating and endpoint["addresses"][0] in terminating.addresses:
            endpoint["conditions"] = {"ready": False, "serving": True, "terminating": True}
    lab.write_manifests(objects, _FILE)


def _start(lab: Lab) -> Running:
    node = lab.node("node1")
    options: dict[str, Any] = {"rate": _RATE}
    service = (lab.cluster_ip(SPEC.number), SPEC.port)
    return {
        "pod -> ClusterIP, TCP": lab.pod("pod-1-2").start_load(*service, **options),
        "host -> ClusterIP, TCP": node.start_load(*service, **options),
        "outside -> NodePort, TCP": lab.client.start_load(node.ipv4, SPEC.node_port, **options),
        "pod -> ClusterIP, UDP": lab.pod("pod-1-3").start_load(*service, protocol="udp", **options),
    }


def _stop(what: str, running: Running, expected: str) -> Iterator[Row]:
    for name, load in running.items():
        result = load.stop()
        yield Row(f"{what}: {name}", f"0 failed; {expected} answers", _summary(result, expected))


def _summary(result: LoadResult, expected: str) -> str:
    word = "answers" if expected in result.pods else "is silent"
    failed = f"{result.failed} failed"
    if result.failed or not result.ok:
        return f"{failed} of {result.attempted} ({result.errors}); {expected} {word}"
    return f"{failed}; {expected} {word}"
