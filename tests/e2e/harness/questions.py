# SPDX-License-Identifier: Apache-2.0
"""Short ways to ask which pods answer at an address."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ebpflb.lab import Member
from ebpflb.lab.ask import Question, ask, ask_at_once, enough
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of

# No Service here has more pods.
TIMES = enough(4)
# Seconds to wait for a reply or a refusal. A TCP socket loses an ICMP error that arrives while
# connect() is still in progress, as it may between namespaces; the next one comes a second later,
# when TCP retransmits.
PATIENCE = 10.0
# Shorter than that second.
AT_ONCE = 0.9
SILENCE_SECONDS = 0.4

REFUSED = "ConnectionRefusedError"
SILENT = "TimeoutError"

PROTOCOLS = ("tcp", "udp")


def answers(
    member: Member, address: str, port: int, protocol: str = "tcp", times: int = TIMES
) -> list[dict[str, Any]]:
    """The pods' replies."""
    return ask(member, Question(address, port, protocol, times))


def pods_at(member: Member, address: str, port: int, protocol: str = "tcp") -> set[str]:
    """The names of the pods that reply, and of errors."""
    return {each.get("pod") or each["error"] for each in answers(member, address, port, protocol)}


def fate(
    member: Member, address: str, port: int, protocol: str = "tcp", seconds: float = PATIENCE
) -> str:
    """The result of one attempt: the name of a pod or of an error."""
    (found,) = ask(member, Question(address, port, protocol, 1, seconds))
    return str(found.get("error") or found["pod"])


class Attempt(NamedTuple):
    """One member's path to an address. The key of its result has the member's name."""

    member: Member
    address: str
    port: int
    protocol: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        """For messages and comparisons."""
        return self.member.name, self.address, self.port, self.protocol


Results = dict[tuple[str, str, int, str], set[str]]


def results(attempts: Iterable[Attempt], *, times: int = 1, seconds: float = PATIENCE) -> Results:
    """The pods that reply and the errors, on many paths. Each member makes its attempts at once."""
    attempts = list(attempts)
    found: Results = {}
    for name in dict.fromkeys(each.member.name for each in attempts):
        own = [each for each in attempts if each.member.name == name]
        questions = [Question(*each[1:], times, seconds) for each in own]
        for each, said in zip(own, ask_at_once(own[0].member, questions), strict=True):
            found[each.key] = {answer.get("pod") or answer["error"] for answer in said}
    return found


def others(found: Results, *expected: str) -> Results:
    """The paths with other pods, or other errors, than expected."""
    return {key: seen for key, seen in found.items() if seen != set(expected)}


def is_silent(member: Member, address: str, port: int, protocol: str = "tcp") -> bool:
    """Whether neither a reply nor a refusal arrives."""
    return fate(member, address, port, protocol, SILENCE_SECONDS) == SILENT


def names(members: Iterable[Member]) -> set[str]:
    """The pods' names."""
    return {member.name for member in members}


def node_ports(cluster: Cluster, spec: ServiceSpec, node: str = "node1") -> Iterator[str]:
    """The node's addresses that accept the NodePort."""
    assert spec.node_port
    for version in cluster.versions:
        yield address_of(cluster.lab.node(node), version)


def everywhere(cluster: Cluster, spec: ServiceSpec) -> Results:
    """The pods that reply on each path by node1: from pod, host and outside, TCP and UDP, every
    family.
    """
    lab = cluster.lab
    node = lab.node("node1")
    attempts = []
    for version in cluster.versions:
        service = (lab.cluster_ip(spec.number, version), spec.port)
        outside = (address_of(node, version), spec.node_port)
        for member, place in (
            (lab.pod("pod-1-1"), service),
            (node, service),
            (lab.client, outside),
        ):
            attempts += [Attempt(member, *place, protocol) for protocol in PROTOCOLS]
    return results(attempts, times=TIMES)


def differing(found: Results, expected: Iterable[Member]) -> Results:
    """The paths on which other pods reply than these."""
    return others(found, *names(expected))
