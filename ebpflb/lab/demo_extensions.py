# SPDX-License-Identifier: Apache-2.0
"""The demo's rows about what Services ask for by annotations."""

import select
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil
from typing import Any

from ebpflb.lab.ask import Question, ask, ask_at_once, enough
from ebpflb.lab.cluster import Lab
from ebpflb.lab.demo_rows import CLUSTER, PATIENCE, QUESTIONS, DemoRow, await_backends, wait_until
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import Member
from ebpflb.words.annotations import SLICE_WEIGHT

BACKED = ServiceSpec(
    "backed", 27, "NodePort", node_port=30105, annotations={"backup": CLUSTER.name}
)
WEIGHTED = ServiceSpec("weighted", 28, "NodePort", node_port=30106)
RETRIED = ServiceSpec("retried", 29, annotations={"retry": "true"})
NOT_RETRIED = ServiceSpec("not-retried", 30)
EVEN = ServiceSpec(
    "even",
    31,
    annotations={"rebalance": "idle 1s, 6000/min", "scheduler": "least-connections"},
)
_AT_ONCE = 5
LIMITED = ServiceSpec(
    "limited", 32, annotations={"new-connections-per-client": f"1/min, burst {_AT_ONCE}"}
)

_MANY_QUESTIONS = 1000
# Of so many, a tenth differs by more once in 10^10 runs.
_SPREAD = 0.062
_CONNECTIONS = 24


def extension_rows(lab: Lab) -> Iterator[DemoRow]:
    yield from _retry_rows(lab)
    yield from _limit_rows(lab)
    yield from _rebalance_rows(lab)
    yield from _weight_rows(lab)
    yield from _backup_rows(lab)


def _serve(lab: Lab, spec: ServiceSpec, pods: Sequence[Member]) -> None:
    lab.write_manifests(lab.service(spec, pods), f"demo-{spec.name}.yaml")
    await_backends(lab, spec, pods)


def _retry_rows(lab: Lab) -> Iterator[DemoRow]:
    """One of four pods has no route back to the client."""
    pods, client = lab.pods[:4], lab.pods[-1]
    for spec in (RETRIED, NOT_RETRIED):
        _serve(lab, spec, pods)
    with _silent(pods[0], client):
        for version in lab.config.family.versions:
            for spec, expected in ((RETRIED, "no errors"), (NOT_RETRIED, "TimeoutError")):
                address = lab.cluster_ip(spec.number, version)
                question = Question(address, spec.port, timeout=PATIENCE)
                seen = ask_at_once(client, [question] * enough(len(pods)))
                errors = {str(each["error"]) for (each,) in seen if "error" in each}
                what = f"pod -> ClusterIP, 1 of 4 pods does not answer, {spec.name}, IPv{version}"
                yield DemoRow(what, expected, ", ".join(sorted(errors)) or "no errors")


def _limit_rows(lab: Lab) -> Iterator[DemoRow]:
    """One client opens more connections than it may, another one as many as it may."""
    noisy, other = lab.pods[-1], lab.pods[-2]
    _serve(lab, LIMITED, lab.pods[:2])
    for version in lab.config.family.versions:
        place = lab.cluster_ip(LIMITED.number, version), LIMITED.port
        for client, times in ((noisy, 4 * _AT_ONCE), (other, _AT_ONCE)):
            seen = ask(client, Question(*place, times=times, timeout=PATIENCE))
            answered = sum("pod" in each for each in seen)
            what = f"{times} connections of a pod that may open {_AT_ONCE} at once, IPv{version}"
            refused = times - _AT_ONCE
            errors = Counter(str(each["error"]) for each in seen if "error" in each)
            told = ", ".join(f"{count} {error}" for error, count in errors.items())
            expected = f"{refused} ConnectionRefusedError" if refused else "no errors"
            yield DemoRow(
                what,
                f"{_AT_ONCE} answers, {expected}",
                f"{answered} answers, {told or 'no errors'}",
            )


@contextmanager
def _silent(pod: Member, client: Member) -> Iterator[None]:
    for address in client.addresses:
        pod.exec(["ip", "route", "add", "blackhole", address])
    try:
        yield
    finally:
        for address in client.addresses:
            pod.exec(["ip", "route", "del", "blackhole", address])


def _rebalance_rows(lab: Lab) -> Iterator[DemoRow]:
    """Connections of a client that opens another one for each that ends."""
    client = lab.pod("pod-1-3")
    share = ceil(1.1 * _CONNECTIONS / len(lab.pods))
    for version in lab.config.family.versions:
        _serve(lab, EVEN, lab.pods[:2])
        with ExitStack() as stack:
            pool = _Pool(stack, client, lab.cluster_ip(EVEN.number, version), EVEN.port)
            _serve(lab, EVEN, lab.pods)
            wait_until(lambda: max(pool.pods().values()) <= share)  # noqa: B023  used at once
            most = max(pool.pods().values())
        what = (
            f"{_CONNECTIONS} idle connections on 2 pods, 4 more pods come, rebalance, IPv{version}"
        )
        expected = f"at most {share} on each of 6 pods"
        seen = expected if most <= share else f"{most} on one pod"
        yield DemoRow(what, expected, seen)


class _Pool:
    """`stack` closes its sockets."""

    def __init__(self, stack: ExitStack, client: Member, address: str, port: int) -> None:
        self._stack, self._client, self._to = stack, client, (address, port)
        self._connections = dict(self._opened() for _ in range(_CONNECTIONS))

    def pods(self) -> Counter[str]:
        """How many connections each pod has now; those that have ended are opened again."""
        for made in select.select(list(self._connections), [], [], 0)[0]:
            del self._connections[made]
            made.close()
            self._connections |= [self._opened()]
        return Counter(self._connections.values())

    def _opened(self) -> tuple[socket.socket, str]:
        family = socket.AF_INET6 if ":" in self._to[0] else socket.AF_INET
        with self._client.entered():
            made = self._stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        made.settimeout(PATIENCE)
        made.connect(self._to)
        made.sendall(b"\n")
        return made, made.recv(100).decode().strip()


def _weight_rows(lab: Lab) -> Iterator[DemoRow]:
    """Of two versions, each in EndpointSlices of its own, the second gets a tenth."""
    old, new, *_ = lab.pods
    lab.write_manifests(_weighed(lab, {old: 90, new: 10}), f"demo-{WEIGHTED.name}.yaml")
    await_backends(lab, WEIGHTED, [old, new])
    node = lab.node("node1")
    for way, member, address, port in (
        ("pod -> ClusterIP", lab.pod("pod-1-3"), lab.cluster_ip(WEIGHTED.number), WEIGHTED.port),
        ("outside -> NodePort", lab.client, node.ipv4, WEIGHTED.node_port),
    ):
        seen = ask(member, Question(address, port, times=_MANY_QUESTIONS))
        share = sum(answer.get("pod") == new.name for answer in seen) / _MANY_QUESTIONS
        about = "10 %" if abs(share - 0.1) < _SPREAD else f"{share:.1%}"
        what = f"{way}, weights 90:10, {_MANY_QUESTIONS:,} connections"
        yield DemoRow(what, "about 10 % to the second pod", f"about {about} to the second pod")


def _weighed(lab: Lab, weights: Mapping[Member, int]) -> Iterator[dict[str, Any]]:
    service, *_ = lab.service(WEIGHTED, ())
    yield service
    for pod, weight in weights.items():
        for piece in lab.service(WEIGHTED, [pod])[1:]:
            piece["metadata"]["name"] += f"-{pod.name}"
            piece["metadata"]["annotations"] = {SLICE_WEIGHT: str(weight)}
            yield piece


def _backup_rows(lab: Lab) -> Iterator[DemoRow]:
    """A Service loses all its endpoints; its backup answers in their place."""
    _serve(lab, BACKED, lab.pods_on("node1"))
    lab.write_manifests(lab.service(BACKED, ()), f"demo-{BACKED.name}.yaml")
    await_backends(lab, BACKED, lab.pods)
    node = lab.node("node1")
    for version in lab.config.family.versions:
        for protocol in ("tcp", "udp"):
            way = f"{protocol.upper()} over IPv{version}"
            question = Question(
                node.address(version), BACKED.node_port, protocol, QUESTIONS, PATIENCE
            )
            seen = ask(lab.client, question)
            pods = {answer["pod"] for answer in seen if "pod" in answer}
            found = f"{len(pods)} pods answer, {sum('error' in each for each in seen)} errors"
            what = f"outside -> NodePort on node1, no endpoint, backup {CLUSTER.name}, {way}"
            yield DemoRow(what, "6 pods answer, 0 errors", found)
