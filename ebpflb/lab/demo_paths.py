# SPDX-License-Identifier: Apache-2.0
"""The first part of the demo: every way to a Service, and whom the pods see."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ebpflb.lab.ask import Question, ask
from ebpflb.lab.cluster import Lab
from ebpflb.lab.demo_rows import Row
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import Member

# Enough that with random choice each of six pods is missed once in 100 million runs.
_QUESTIONS = 120
_SILENT_QUESTIONS = 2
_SILENT_SECONDS = 0.5

CLUSTER = ServiceSpec("web", 21, "NodePort", node_port=30100)
LOCAL = ServiceSpec(
    "web-local", 22, "NodePort", node_port=30101, spec={"externalTrafficPolicy": "Local"}
)
EMPTY = ServiceSpec("web-empty", 23)
_FILE = "demo.yaml"

Answers = Sequence[dict[str, Any]]


def write_services(lab: Lab) -> None:
    """Three Services: pods of both nodes, pods of the first node alone, no pods."""
    services = (
        (CLUSTER, lab.pods),
        (LOCAL, lab.pods_on("node1")),
        (EMPTY, ()),
    )
    lab.write_manifests(
        [each for spec, pods in services for each in lab.service(spec, pods)], _FILE
    )


def rows(lab: Lab) -> Iterator[Row]:
    """All ways, in both families, with TCP and UDP."""
    for version in lab.config.family.versions:
        for protocol in ("tcp", "udp"):
            yield from _cluster_ip_rows(lab, version, protocol)
            yield from _node_port_rows(lab, version, protocol)
        yield _refused_row(lab, version)


def _cluster_ip_rows(lab: Lab, version: int, protocol: str) -> Iterator[Row]:
    question = Question(lab.cluster_ip(CLUSTER.number, version), CLUSTER.port, protocol, _QUESTIONS)
    way = _way(version, protocol)
    host, pod = lab.node("node1"), lab.pod("pod-1-1")
    seen = ask(host, question)
    yield Row(f"host -> ClusterIP, {way}", "6 pods answer; they see node1", _summary(lab, seen))
    seen = ask(pod, question)
    others = [answer for answer in seen if answer.get("pod") != pod.name]
    yield Row(f"pod -> ClusterIP, {way}", "5 others answer; they see pod-1-1", _others(lab, others))
    itself = [answer for answer in seen if answer.get("pod") == pod.name]
    # At the socket it is a connection inside the pod; at tc the source must be another one.
    source = pod.name if protocol == "tcp" else host.name
    yield Row(f"pod -> ClusterIP -> itself, {way}", f"it sees {source}", _itself(lab, itself))


def _node_port_rows(lab: Lab, version: int, protocol: str) -> Iterator[Row]:
    for node in lab.nodes:
        address = _of(node, version)
        seen = ask(lab.client, Question(address, CLUSTER.node_port, protocol, _QUESTIONS))
        what = f"outside -> NodePort on {node.name}, Cluster, {_way(version, protocol)}"
        expected = f"3 pods here see client; 3 elsewhere see {node.name}"
        yield Row(what, expected, _both_sides(lab, node.name, seen))
    what = f"outside -> NodePort on {{}}, Local, {_way(version, protocol)}"
    question = Question(_of(lab.node("node1"), version), LOCAL.node_port, protocol, _QUESTIONS)
    seen = ask(lab.client, question)
    yield Row(what.format("node1"), "3 pods answer; they see client", _summary(lab, seen))
    address = _of(lab.node("node2"), version)
    silence = (_SILENT_QUESTIONS, _SILENT_SECONDS)
    seen = ask(lab.client, Question(address, LOCAL.node_port, protocol, *silence))
    yield Row(what.format("node2"), "TimeoutError", _errors(seen))


def _refused_row(lab: Lab, version: int) -> Row:
    address = lab.cluster_ip(EMPTY.number, version)
    seen = ask(lab.pod("pod-1-1"), Question(address, EMPTY.port))
    return Row(
        f"pod -> Service without pods, IPv{version}", "ConnectionRefusedError", _errors(seen)
    )


def _summary(lab: Lab, seen: Answers) -> str:
    return f"{_count(seen)} pods answer; they see {_seen_by(lab, seen)}"


def _others(lab: Lab, seen: Answers) -> str:
    return f"{_count(seen)} others answer; they see {_seen_by(lab, seen)}"


def _itself(lab: Lab, seen: Answers) -> str:
    return f"it sees {_seen_by(lab, seen)}"


def _both_sides(lab: Lab, node: str, seen: Answers) -> str:
    here = [answer for answer in seen if answer.get("node") == node]
    elsewhere = [answer for answer in seen if answer.get("node") != node]
    first = f"{_count(here)} pods here see {_seen_by(lab, here)}"
    return f"{first}; {_count(elsewhere)} elsewhere see {_seen_by(lab, elsewhere)}"


def _seen_by(lab: Lab, answers: Answers) -> str:
    """The names of those whose addresses the pods saw."""
    return _words(answers, lambda answer: _owner(lab, str(answer.get("client_address", "nobody"))))


def _owner(lab: Lab, address: str) -> str:
    for member in lab.members:
        if address in member.addresses:
            return member.name
    for number, node in enumerate(lab.nodes, start=1):
        for ranges in lab.layout.ranges:
            if address in {ranges.pod_gateway(number), ranges.tunnel(number)}:
                return node.name
    return address


def _errors(answers: Answers) -> str:
    return _words(answers, lambda answer: str(answer.get("error", f"{answer.get('pod')} answers")))


def _words(answers: Answers, word: Callable[[dict[str, Any]], str]) -> str:
    words: Iterable[str] = {word(answer) for answer in answers}
    return ", ".join(sorted(words)) or "nobody"


def _count(answers: Answers) -> int:
    return len({answer["pod"] for answer in answers if "pod" in answer})


def _of(member: Member, version: int) -> str:
    return member.ipv4 if version == 4 else member.ipv6  # noqa: PLR2004 - an IP version is a name


def _way(version: int, protocol: str) -> str:
    return f"{protocol.upper()} over IPv{version}"
