# SPDX-License-Identifier: Apache-2.0
"""The page of `kubectl ebpflb ui` in the lab."""

import subprocess
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ebpflb.kubectl.ui.aside import Heard
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.traffic import SLOT_SECONDS, EdgeTraffic
from ebpflb.lab import Lab, LabNode
from ebpflb.model.flow import Flow, LostFlows, read_flow
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.command import PROGRAM, ebpflb
from tests.e2e.harness.questions import fate
from tests.e2e.harness.waiting import wait_until
from tests.ui.page import pages_of

PORT = 80
CLIENTS = ("pod-1-1", "pod-2-1")


@contextmanager
def page_of(lab: Lab) -> Iterator[Any]:
    """The page's backend, which follows all nodes."""
    processes: list[subprocess.Popen[str]] = []

    def follow(node: LabNode) -> Generator[str, None, None]:
        command = [*PROGRAM, "flows", "--follow", "-o", "jsonl"]
        processes.append(node.popen(command, stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout
        yield from processes[-1].stdout

    def run(node: str, arguments: Any) -> str:
        return ebpflb(lab.node(node), *arguments).stdout

    def kept(wanted: Mapping[str, str]) -> Heard[list[Flow | LostFlows]]:
        options = [f"--{name}={text}" for name, text in wanted.items() if name != "limit"]
        found = []
        for node in lab.nodes:
            for line in ebpflb(node, "flows", *options, "-o", "jsonl").stdout.splitlines():
                found.append(read_flow(line))
                found[-1].node = node.name
        return Heard(found)

    traffic = EdgeTraffic()
    following = Following(traffic, lambda: {each.name: partial(follow, each) for each in lab.nodes})
    following.start()
    try:
        yield pages_of(traffic, following, run=run, flows=kept, clock=_next_slot)
    finally:
        following.stop()
        for process in processes:
            with process:
                process.kill()


def _next_slot() -> float:
    """So that a window can end after what has just happened."""
    return time.time() // SLOT_SECONDS * SLOT_SECONDS + SLOT_SECONDS


def until_now() -> str:
    """A window that ends with the current slot."""
    return datetime.fromtimestamp(_next_slot(), UTC).isoformat()


def lines(pages: Any, **query: str) -> set[tuple[str, str, str]]:
    """Client, Service, pod."""
    found = pages["view"]({"group": "pod", **query})["rows"]
    return {tuple(row[end]["name"] for end in ("client", "service", "target")) for row in found}


def followed(cluster: Cluster, pages: Any) -> None:
    """Return when flows of both nodes arrive."""
    spec = cluster.serve(cluster.new("ClusterIP"), cluster.lab.pods)
    clients = [cluster.lab.pod(name) for name in CLIENTS]

    def is_seen() -> bool:
        for client in clients:
            fate(client, cluster.cluster_ips(spec)[0], PORT)
        return len({client for client, *_ in lines(pages)}) == len(clients)

    wait_until(is_seen, "flows of both nodes")
