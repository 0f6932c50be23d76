# SPDX-License-Identifier: Apache-2.0
"""An agent on a node that has a control plane but no kubelet, for tests of its API source."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.load.pins import Pins, newest_generation
from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.errors import EbpflbError
from ebpflb.model.address import format_address
from ebpflb.model.service import ServiceName
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.place import Daemon, Place

NODE = "node1"

# A start may have to compile, which takes half a minute alone and longer beside other tests.
_START_TIMEOUT = 300.0
_METRICS = "127.0.0.1:10249"


class ClusterAgent:
    """`ebpflb run` on NODE; its pins are removed at the end."""

    def __init__(self, node: Place, daemon: Daemon, pins: Path) -> None:
        self.daemon = daemon
        self._node = node
        self._pins = pins

    def said(self) -> str:
        """Its log."""
        return self.daemon.log.read_text()

    def wait_in_sync(self) -> None:
        """Until it says so for the first time. EbpflbError with the end of its log if it ends."""
        self.daemon.wait_until(lambda: '"in sync"' in self.said(), "in sync", _START_TIMEOUT)

    def status(self) -> dict[str, Any]:
        """The agent's `ebpflb status`; empty until it responds."""
        options = ["--bpffs-root", self._pins, "--metrics-bind-address", _METRICS, "-o", "json"]
        ran = self._node.exec([sys.executable, "-m", "ebpflb", "status", *map(str, options)])
        return dict(json.loads(ran.stdout)["agent"] or {})

    def refused_connections(self) -> int:
        """The number of TCP connections from its node that were refused so far."""
        lines = self._node.exec(["cat", "/proc/net/snmp"]).stdout.splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        return int(values[names.index("AttemptFails")])

    def get(self, path: str, port: int = 10249) -> tuple[int, str]:
        """Status and body of one of the agent's HTTP pages."""
        url = f"http://127.0.0.1:{port}{path}"
        ran = self._node.exec(["curl", "-s", "-w", "%{http_code}", url])
        return int(ran.stdout[-3:]), ran.stdout[:-3]

    def backends(self, service: str) -> dict[str, list[str]]:
        """Frontend -> backends for local sources, of a Service in the namespace `default`."""
        found = read_frontends(self.maps(), ServiceName("default", service))
        return {
            f"{format_address(each.key.address)}:{each.key.port}": sorted(
                f"{format_address(backend.address)}:{backend.port}"
                for backend in each.local.backends
            )
            for each in (one.frontend for one in found)
        }

    def maps(self) -> MapSet:
        """The pinned maps."""
        generation = newest_generation(self._pins)
        if generation is None:
            raise EbpflbError(f"nothing is pinned below {self._pins}")
        return open_maps(generation.maps)


@contextmanager
def running_agent(
    control: ControlPlane, *, kubeconfig: Path | None = None, node_name: str = NODE
) -> Iterator[ClusterAgent]:
    """A started agent."""
    node = Place.of(control.layout, NODE)
    # Not on a bpffs: the agent mounts one there, which is removed with the pins.
    pins = node.folder / "bpf"
    options = {
        "kubeconfig": kubeconfig or control.kubeconfig,
        "node-name": node_name,
        "bpffs-root": pins,
        "cgroup-root": node.cgroup,
        "query-socket": node.folder / "agent.sock",
        "flow-history-directory": node.folder / "flows",
        "metrics-bind-address": _METRICS,
    }
    given = (f"--{name}={value}" for name, value in options.items())
    try:
        (node.folder / "ebpflb.log").unlink(missing_ok=True)
        daemon = node.start("ebpflb", [sys.executable, "-m", "ebpflb", "run", *given])
        yield ClusterAgent(node, daemon, pins)
        daemon.check()
    finally:
        for each in node.daemons:
            each.stop()
        if pins.is_mount():
            Pins(pins).remove_all()
