# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md is right: each cause is provoked, and the output has the lines shown."""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ebpflb.lab import Lab, LabNode, Member
from ebpflb.lab.ask import enough
from tests.e2e.harness.command import PROGRAM, stop_between_looks
from tests.e2e.harness.in_force import wait_in_force
from tests.e2e.harness.waiting import wait_until

DOCUMENT = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
# The addresses of a first lab, as written in the document.
FIRST = "10.100."
PORT, LOCAL_NODE_PORT = 80, 30081
BLOCK = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)
COMMAND = re.compile(r"\$ ebpflb lab exec (\S+) ebpflb (.*)")


class Promise(NamedTuple):
    """A command of the document, and lines that it prints."""

    node: LabNode
    arguments: Sequence[str]
    lines: Sequence[str]


class Walk:
    """A section of the document, with the addresses of a lab."""

    def __init__(self, lab: Lab, title: str) -> None:
        network = ".".join(lab.node("node1").ipv4.split(".")[:2])
        text = DOCUMENT.read_text().replace(FIRST, f"{network}.")
        (section,) = (each for each in text.split("\n## ") if each.startswith(title))
        blocks = BLOCK.findall(section)
        self.blocks = [re.sub("^    ", "", each, flags=re.MULTILINE) for each in blocks]
        self.lab = lab

    def manifest(self) -> list[dict[str, Any]]:
        """The objects that it applies to the lab."""
        (block,) = (each for each in self.blocks if "apiVersion:" in each)
        return list(yaml.safe_load_all(block))

    def promises(self, command: str) -> Iterator[Promise]:
        """In order."""
        for block in self.blocks:
            for part in re.split(r"^(?=\$ )", block, flags=re.MULTILINE):
                first, *lines = part.splitlines() or [""]
                found = COMMAND.match(first)
                if found and found[2].startswith(f"{command} "):
                    node = self.lab.node(found[1])
                    said = [each for each in lines if each not in {"...", ""}]
                    yield Promise(node, found[2].split(), said)


def shape(line: str) -> str:
    """A line without the parts that differ between runs: times, ports, rates and shares."""
    line = re.sub(r"^[A-Z][a-z]{2} \d\d \d\d:\S+", "", line).replace("#", "")
    return " ".join(re.sub(r"[\d.]+[kM]?", "0", line).split())


def exact(line: str) -> str:
    return line


def missing(
    promise: Promise, form: Callable[[str], str] = shape, send: Callable[[], object] | None = None
) -> set[str]:
    """Lines of the document that the output lacks; `send`: traffic to send meanwhile."""
    command = [*PROGRAM, *promise.arguments]
    running = promise.node.popen(command, stdout=subprocess.PIPE)
    if send:
        while not stop_between_looks(running):
            running.kill()
            running.communicate()
            running = promise.node.popen(command, stdout=subprocess.PIPE)
        send()
        running.send_signal(signal.SIGCONT)
    said, _ = running.communicate(timeout=60)
    assert promise.lines
    return set(map(form, promise.lines)) - set(map(form, said.splitlines()))


def assert_kept(walk: Walk, send: Callable[[], object], *commands: str) -> None:
    """Runs top during that traffic, then the commands; of a command shown twice the last output
    counts.
    """
    (top,) = walk.promises("top")
    assert not missing(top, send=send)
    for command in commands:
        *_, promise = walk.promises(command)
        form = exact if command == "explain" else shape
        wait_until(partial(is_kept, promise, form), f"{command} says {promise.lines}")


def is_kept(promise: Promise, form: Callable[[str], str]) -> bool:
    return not missing(promise, form)


@contextmanager
def served(walk: Walk, file: str) -> Iterator[None]:
    """The Service of a section, in force."""
    walk.lab.write_manifests(walk.manifest(), file)
    try:
        wait_in_force(walk.lab.nodes)
        yield
    finally:
        walk.lab.remove_manifests(file)


@contextmanager
def without_way_back(pod: Member) -> Iterator[None]:
    """The pod receives packets but cannot reply."""
    route = ["blackhole", f"{'.'.join(pod.ipv4.split('.')[:2])}.0.0/16"]
    pod.exec(["ip", "route", "add", *route])
    try:
        yield
    finally:
        pod.exec(["ip", "route", "del", *route])


@contextmanager
def without_zone(lab: Lab) -> Iterator[None]:
    """The Nodes lose their zone labels, as by the document's `sed /topology/d`."""
    path = lab.node("node1").manifests / "nodes.yaml"
    before = list(yaml.safe_load_all(path.read_text()))
    after = re.sub(r"^.*topology.*\n", "", path.read_text(), flags=re.MULTILINE)
    lab.write_manifests(list(yaml.safe_load_all(after)), path.name)
    try:
        wait_in_force(lab.nodes)
        yield
    finally:
        lab.write_manifests(before, path.name)
        wait_in_force(lab.nodes)


def test_a_wrong_policy(cluster, lab):
    walk = Walk(lab, "A NodePort times out")
    address = lab.node("node2").ipv4

    def send() -> None:
        lab.client.load(address, LOCAL_NODE_PORT, count=8, timeout=0.3)

    assert_kept(walk, send, "flows", "explain", "maps dump")


def test_a_dead_backend(cluster, lab):
    walk = Walk(lab, "Some connections fail")

    def send() -> None:
        service = lab.cluster_ip(1, 4)
        lab.pod("pod-1-1").load(service, PORT, count=enough(4), workers=30, timeout=0.5)

    with without_way_back(lab.pod("pod-2-2")):
        assert_kept(walk, send, "flows", "explain")


def test_a_missing_zone_label(cluster, lab):
    walk = Walk(lab, "Traffic leaves its zone")
    objects = walk.manifest()
    address = objects[0]["spec"]["clusterIP"]
    with served(walk, "near.yaml"):
        before, _ = walk.promises("explain")
        assert not missing(before, exact)
        with without_zone(lab):
            assert_kept(walk, lambda: lab.pod("pod-1-1").load(address, PORT, count=60), "explain")


def test_a_source_range(cluster, lab):
    walk = Walk(lab, "A load-balancer IP times out")
    address = walk.manifest()[0]["status"]["loadBalancer"]["ingress"][0]["ip"]

    def send() -> None:
        lab.pod("pod-1-1").load(address, PORT, count=8, timeout=0.3)

    with served(walk, "web.yaml"):
        assert_kept(walk, send, "flows", "explain")
