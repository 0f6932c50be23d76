# SPDX-License-Identifier: Apache-2.0
"""`make demo`: a small cluster, real traffic, and a table of what was expected and what was seen.

Exit status 1 if one row differs. Takes well under a minute, touches nothing but its own lab.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.errors import EbpflbError
from ebpflb.lab.ask import Question, ask
from ebpflb.lab.build import remove_orphans
from ebpflb.lab.cluster import Lab
from ebpflb.lab.demo_extensions import extension_rows
from ebpflb.lab.demo_rows import CLUSTER, PATIENCE, QUESTIONS, DemoRow, await_backends, wait_until
from ebpflb.lab.layout import LabConfig
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import LabNode, LoadRun, Member, NodeAgent, running_agents
from ebpflb.lab.offloads import wire

_MANYQUESTIONS = 1000

LOCAL = ServiceSpec(
    "web-local", 22, "NodePort", node_port=30101, spec={"externalTrafficPolicy": "Local"}
)
EMPTY = ServiceSpec("web-empty", 23)
ROLLING = ServiceSpec("rolling", 24, "NodePort", node_port=30102)
ELSEWHERE = ServiceSpec("elsewhere", 25, "NodePort", node_port=30103)
DIRECT = ServiceSpec("direct", 26, "NodePort", node_port=30104)
GRACE_SECONDS = 2.0

_RATE = 150.0
_BEFORE_SECONDS = 1.0
_DUMP_LINES = 24

Answers = Sequence[dict[str, Any]]


def write_services(lab: Lab) -> None:
    services = ((CLUSTER, lab.pods), (LOCAL, lab.pods_on("node1")), (EMPTY, ()))
    objects = [each for spec, pods in services for each in lab.service(spec, pods)]
    lab.write_manifests(objects, "demo.yaml")


def path_rows(lab: Lab) -> Iterator[DemoRow]:
    """All ways, in both families, with TCP and UDP."""
    for version in lab.config.family.versions:
        for protocol in ("tcp", "udp"):
            yield from _cluster_ip_rows(lab, version, protocol)
            yield from _node_port_rows(lab, version, protocol)
        seen = ask(lab.pod("pod-1-1"), Question(lab.cluster_ip(EMPTY.number, version), EMPTY.port))
        what = f"pod -> Service without pods, IPv{version}"
        yield DemoRow(what, "ConnectionRefusedError", _errors(seen))


def _cluster_ip_rows(lab: Lab, version: int, protocol: str) -> Iterator[DemoRow]:
    question = Question(lab.cluster_ip(CLUSTER.number, version), CLUSTER.port, protocol, QUESTIONS)
    way = f"{protocol.upper()} over IPv{version}"
    host, pod = lab.node("node1"), lab.pod("pod-1-1")
    expected = "6 pods answer; they see node1"
    yield DemoRow(f"host -> ClusterIP, {way}", expected, _pods_answer(lab, ask(host, question)))
    seen = ask(pod, question)
    others = [answer for answer in seen if answer.get("pod") != pod.name]
    found = f"{_count(others)} others answer; they see {_seen_by(lab, others)}"
    yield DemoRow(f"pod -> ClusterIP, {way}", "5 others answer; they see pod-1-1", found)
    itself = [answer for answer in seen if answer.get("pod") == pod.name]
    # At the socket it is a connection inside the pod; at tc the source must be another one. Without
    # the cookies of namespaces, which pods tc covers is not known, and UDP is left to the socket.
    is_at_tc = protocol == "udp" and Probe().supports(Feature.SO_NETNS_COOKIE)
    source = host.name if is_at_tc else pod.name
    what = f"pod -> ClusterIP -> itself, {way}"
    yield DemoRow(what, f"it sees {source}", f"it sees {_seen_by(lab, itself)}")


def _node_port_rows(lab: Lab, version: int, protocol: str) -> Iterator[DemoRow]:
    way = f"{protocol.upper()} over IPv{version}"

    def seen(node: Member, port: int, times: int = QUESTIONS, timeout: float = 10.0) -> Answers:
        question = Question(node.address(version), port, protocol, times, timeout)
        return ask(lab.client, question)

    for node in lab.nodes:
        answers = seen(node, CLUSTER.node_port)
        here = [answer for answer in answers if answer.get("node") == node.name]
        elsewhere = [answer for answer in answers if answer.get("node") != node.name]
        yield DemoRow(
            f"outside -> NodePort on {node.name}, Cluster, {way}",
            f"3 pods here see client; 3 elsewhere see {node.name}",
            f"{_count(here)} pods here see {_seen_by(lab, here)}; "
            f"{_count(elsewhere)} elsewhere see {_seen_by(lab, elsewhere)}",
        )
    first, second = lab.nodes
    answers = seen(first, LOCAL.node_port)
    what = f"outside -> NodePort on {first.name}, Local, {way}"
    yield DemoRow(what, "3 pods answer; they see client", _pods_answer(lab, answers))
    what = f"outside -> NodePort on {second.name}, Local, {way}"
    yield DemoRow(what, "TimeoutError", _errors(seen(second, LOCAL.node_port, 2, 0.5)))


def _pods_answer(lab: Lab, seen: Answers) -> str:
    return f"{_count(seen)} pods answer; they see {_seen_by(lab, seen)}"


def _seen_by(lab: Lab, answers: Answers) -> str:
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
    return ", ".join(sorted({word(answer) for answer in answers})) or "nobody"


def _count(answers: Answers) -> int:
    return len({answer["pod"] for answer in answers if "pod" in answer})


def change_rows(lab: Lab, agents: Mapping[str, NodeAgent]) -> Iterator[DemoRow]:
    """A backend is added, another one goes; then an agent is killed and comes back."""
    first, *middle, last = lab.pods
    _write_rolling(lab, [first, *middle])
    await_backends(lab, ROLLING, [first, *middle])
    running = _start_loads(lab)
    _write_rolling(lab, lab.pods)
    await_backends(lab, ROLLING, lab.pods)
    _end_gracefully(lab, first)
    time.sleep(_BEFORE_SECONDS)
    what = f"backend {last.name} added, {first.name} terminating for {GRACE_SECONDS:.0f} s and gone"
    yield from _stop_loads(what, running, last.name)

    running = _start_loads(lab)
    agents["node1"].kill()
    time.sleep(_BEFORE_SECONDS)
    agents["node1"].start()
    agents["node1"].wait_in_sync()
    time.sleep(_BEFORE_SECONDS)
    yield from _stop_loads("agent of node1 killed (SIGKILL) and restarted", running, last.name)


def xdp_rows(lab: Lab, logs: Path) -> Iterator[DemoRow]:
    """The first node forwards packets for pods elsewhere, and their replies, at XDP."""
    wire(lab)
    node, other = lab.nodes
    lab.write_manifests(lab.service(ELSEWHERE, lab.pods_on(other.name)), "xdp.yaml")
    agent = NodeAgent(node, logs / "xdp.log", ["--xdp", "native"])
    agent.start()
    try:
        agent.wait_in_sync()
        for version in lab.config.family.versions:
            for protocol in ("tcp", "udp"):
                yield _xdp_row(lab, node, version, protocol)
    finally:
        agent.kill()


def _xdp_row(lab: Lab, node: LabNode, version: int, protocol: str) -> DemoRow:
    what = (
        f"outside -> NodePort on {node.name}, pods elsewhere, {protocol.upper()} over IPv{version}"
    )
    before = _sent_from_xdp(node)
    question = Question(node.address(version), ELSEWHERE.node_port, protocol, QUESTIONS)
    answers = ask(lab.client, question)
    # At least a request and its reply; some go through the stack, which resolves neighbours.
    is_sent = _sent_from_xdp(node) - before >= QUESTIONS
    expected = f"3 pods answer; they see {node.name}; sent from XDP"
    return DemoRow(what, expected, _pods_answer(lab, answers) + "; sent from XDP" * is_sent)


def dsr_rows(lab: Lab, logs: Path) -> Iterator[DemoRow]:
    """The first node tunnels packets for pods elsewhere; these answer the client directly."""
    first, other = lab.nodes
    lab.write_manifests(lab.service(DIRECT, lab.pods_on(other.name)), "dsr.yaml")
    logs.mkdir()
    with running_agents(lab.nodes, logs, ["--dsr", "all"]):
        _await_tunnels(lab, first)
        for version in lab.config.family.versions:
            for protocol in ("tcp", "udp"):
                way = f"{protocol.upper()} over IPv{version}"
                what = f"outside -> NodePort on {first.name}, pods elsewhere, {way}"
                address = first.address(version)
                question = Question(address, DIRECT.node_port, protocol, QUESTIONS)
                seen = _pods_answer(lab, ask(lab.client, question))
                yield DemoRow(what, "3 pods answer; they see client", seen)


def _await_tunnels(lab: Lab, node: LabNode) -> None:
    """Until the node knows where all pods of the other one are, or gives up."""
    wanted = len(lab.pods_on(lab.nodes[1].name)) * len(lab.config.family.versions)
    wait_until(lambda: len(_dump(node, "lb_pod_nodes")) >= wanted)


def _sent_from_xdp(node: LabNode) -> int:
    counted = _dump(node, "lb_count_xdp")
    return sum(each["value"] for each in counted if each["key"] == "sent")


def _dump(node: LabNode, name: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "ebpflb", "maps", "dump", name, "-o", "json"]
    found: list[dict[str, Any]] = json.loads(node.exec(command).stdout)[name]
    return found


def _end_gracefully(lab: Lab, pod: Member) -> None:
    """As Kubernetes does it: terminating, still serving; then the process ends; then it is gone."""
    others = [other for other in lab.pods if other is not pod]
    _write_rolling(lab, lab.pods, terminating=pod)
    await_backends(lab, ROLLING, others)
    time.sleep(GRACE_SECONDS)
    server = next(row.pid for row in lab.status() if row.name == pod.name)
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, signal.SIGTERM)
    _write_rolling(lab, others)


def _write_rolling(lab: Lab, pods: Sequence[Member], terminating: Member | None = None) -> None:
    objects = lab.service(ROLLING, pods)
    for endpoint in (each for item in objects for each in item.get("endpoints", ())):
        if terminating and endpoint["addresses"][0] in terminating.addresses:
            endpoint["conditions"] = {"ready": False, "serving": True, "terminating": True}
    lab.write_manifests(objects, "demo-rolling.yaml")


def _start_loads(lab: Lab) -> dict[str, LoadRun]:
    """Loads that have run for a second."""
    node = lab.node("node1")
    options: dict[str, Any] = {"rate": _RATE, "timeout": PATIENCE}
    service = (lab.cluster_ip(ROLLING.number), ROLLING.port)
    running = {
        "pod -> ClusterIP, TCP": lab.pod("pod-1-2").start_load(*service, **options),
        "host -> ClusterIP, TCP": node.start_load(*service, **options),
        "outside -> NodePort, TCP": lab.client.start_load(node.ipv4, ROLLING.node_port, **options),
        "pod -> ClusterIP, UDP": lab.pod("pod-1-3").start_load(*service, protocol="udp", **options),
    }
    time.sleep(_BEFORE_SECONDS)
    return running


def _has_heard(load: LoadRun, pod: str) -> bool:
    return load.pods()[pod] > 0


def _stop_loads(what: str, running: Mapping[str, LoadRun], expected: str) -> Iterator[DemoRow]:
    for name, load in running.items():
        wait_until(partial(_has_heard, load, expected))
        result = load.stop()
        failed = f"{result.failed} failed"
        if result.failed or not result.ok:
            failed += f" of {result.attempted} ({result.errors})"
        word = "answers" if expected in result.pods else "is silent"
        seen = f"{failed}; {expected} {word}"
        yield DemoRow(f"{what}: {name}", f"0 failed; {expected} answers", seen)


def main() -> int:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    try:
        for line in remove_orphans():
            console.print(line)
        return _run(console)
    except EbpflbError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def _run(console: Console) -> int:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as logs, Lab.up(LabConfig(name="demo")) as lab:
        console.print(f"A cluster of {len(lab.nodes)} nodes and {len(lab.pods)} pods is up.")
        write_services(lab)
        with running_agents(lab.nodes, Path(logs)) as agents:
            console.print("An agent is on each node. Now the traffic.\n")
            rows = list(_show(console, "Paths", path_rows(lab)))
            rows += _show(console, "By annotations of Services", extension_rows(lab))
            rows += _show(console, "Changes under load", change_rows(lab, agents))
            agents["node1"].stop()
            rows += _show(console, "XDP", xdp_rows(lab, Path(logs)))
            for agent in agents.values():
                agent.stop()
            title = "Direct server return (DSR)"
            rows += _show(console, title, dsr_rows(lab, Path(logs, "dsr")))
            _show_dump(console, lab)
    wrong = sum(not row.is_right for row in rows)
    console.print(f"\n{len(rows) - wrong} of {len(rows)} rows as expected", end="")
    console.print(f", in {time.monotonic() - begin:.0f} s.")
    return 1 if wrong else 0


def _show(console: Console, title: str, rows: Iterator[DemoRow]) -> list[DemoRow]:
    done = list(rows)
    table = Table("what", "expected", "seen", "", title=title, title_justify="left")
    for row in done:
        mark = "[green]as expected[/]" if row.is_right else "[bold red]DIFFERS[/]"
        table.add_row(row.what, row.expected, row.seen, mark)
    console.print(table)
    return done


def _show_dump(console: Console, lab: Lab) -> None:
    command = [sys.executable, "-m", "ebpflb", "maps", "dump", "--service", "default/rolling"]
    dump = lab.nodes[0].exec(command).stdout.splitlines()
    where = f"On {lab.nodes[0].name}, `ebpflb maps dump --service default/rolling`"
    console.print(f"\n{where} prints:\n")
    for line in dump[:_DUMP_LINES]:
        print(f"    {line}")


if __name__ == "__main__":
    sys.exit(main())
