# SPDX-License-Identifier: Apache-2.0
"""A namespace in which things go wrong, and what somebody sees of it who may view nothing else."""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

from ebpflb.kubectl.access import Access
from ebpflb.kubectl.cluster import Cluster as AskedCluster
from ebpflb.kubectl.execution import PodExecutor
from ebpflb.kubectl.live.sight import Sight
from ebpflb.kubectl.relay import Relay
from ebpflb.kubectl.ui.traffic import SLOT_SECONDS
from ebpflb.lab import processes
from tests.cluster.harness import workloads
from tests.cluster.harness.cluster import Cluster
from tests.cluster.released.plugin import Plugin

SPACE = "orders"
BASKET, CART = "basket", "cart"
"""Pods that are clients: of new connections, and of long ones."""
OLD, NEW = "stock-v1", "stock-v2"


def open_orders(cluster: Cluster) -> None:
    """`api` has three endpoints; `front` has one, and policy Local; `stock` has its old version."""
    first, second = (node.name for node in cluster.nodes)
    local = {"type": "NodePort", "externalTrafficPolicy": "Local"}
    objects = [
        workloads.deployment("api", replicas=3, terminationGracePeriodSeconds=0),
        workloads.service("api"),
        workloads.asker("front", first),
        workloads.service("front", **local),
        *(workloads.asker(name, second) for name in (OLD, NEW)),
        workloads.service("stock", app=OLD),
        *(workloads.asker(name, first) for name in (BASKET, CART)),
    ]
    workloads.apply(cluster, SPACE, objects)


def patch(cluster: Cluster, service: str, **spec: object) -> None:
    """Change fields of a Service."""
    change = json.dumps({"spec": spec})
    cluster.kubectl("-n", SPACE, "patch", f"service/{service}", "-p", change)


@contextmanager
def silent(cluster: Cluster, pod: str, client: str) -> Iterator[None]:
    """Inside the block, a pod's answers to another pod get lost; its probes get theirs."""
    address = workloads.field(cluster, SPACE, f"pod/{client}", "{.status.podIP}")
    route = ("blackhole", address)
    enter = ["nsenter", f"--target={_process(cluster, pod)}", "--net", "ip", "route"]
    subprocess.run([*enter, "add", *route], check=True)
    try:
        yield
    finally:
        subprocess.run([*enter, "del", *route], check=True)


def _process(cluster: Cluster, pod: str) -> int:
    wanted = f"POD_NAME={pod}".encode()
    for node in cluster.nodes:
        for pid in processes.in_cgroup(node.cgroup):
            with suppress(OSError):
                if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return pid
    raise LookupError(f"no process of pod {pod}")


@contextmanager
def repeated(*asks: Callable[[], object]) -> Iterator[None]:
    """Clients that ask again and again, inside the block."""
    stop = threading.Event()

    def repeat(ask: Callable[[], object]) -> None:
        while not stop.is_set():
            ask()

    with ThreadPoolExecutor(len(asks)) as pool:
        running = [pool.submit(repeat, each) for each in asks]
        try:
            yield
        finally:
            stop.set()
    for each in running:
        each.result()


class Times(NamedTuple):
    """The options for what was between two moments."""

    began: str
    ended: str

    @property
    def of_flows(self) -> tuple[str, ...]:
        return ("--since", self.began, "--until", self.ended)

    @property
    def at(self) -> tuple[str, ...]:
        return ("--at", self.ended)

    @property
    def page_until(self) -> str:
        """The page rounds it down to the end of a slot."""
        ended = datetime.fromisoformat(self.ended)
        return (ended + timedelta(seconds=SLOT_SECONDS)).isoformat()


def now() -> str:
    """As the options for times want it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Viewer(NamedTuple):
    """Who may only view the namespace."""

    plugin: Plugin

    def run(self, *words: str, status: int = 0) -> str:
        """What a command prints, on one line; asserts that nothing is said beside it, as when nodes
        are asked without the relay.
        """
        done = self.plugin.run(*words, "-n", SPACE, status=status)
        assert done.stderr == ""
        return " ".join(done.stdout.split())

    def json(self, *words: str, status: int = 0) -> Any:
        done = self.plugin.run(*words, "-n", SPACE, "-o", "json", status=status)
        assert done.stderr == ""
        return json.loads(done.stdout)

    def top(self, service: str, *options: str) -> dict[str, Any]:
        """The TCP port of a Service."""
        found = self.json("top", "--service", service, *options)
        services = found["services"] if "--at" in options else found
        (port,) = (each for each in services if each["protocol"] == "TCP")
        return dict(port)

    def sight(self) -> Sight:
        """What `kubectl ebpflb live` asks."""
        access = Access(str(self.plugin.kubeconfig), seconds=60)
        relay = Relay(access, is_only=True)
        return Sight(AskedCluster(access, (), PodExecutor(access), relay=relay), SPACE, 1.0)


def on_page(url: str, page: str, **query: object) -> Any:
    """What the page's server answers. HTTPError."""
    with urlopen(f"{url}api/{page}?{urlencode(query)}", timeout=60) as answer:  # noqa: S310
        return json.load(answer)


def lines_to(url: str, service: str, **query: object) -> list[dict[str, Any]]:
    """The page's lines to a Service, those with most problems first. HTTPError."""
    view = on_page(url, "view", group="pod", window=300, service=f"{SPACE}/{service}", **query)
    return list(view["rows"])
