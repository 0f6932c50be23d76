# SPDX-License-Identifier: Apache-2.0
"""A lab whose nodes run Cilium, with Services from an API server.

The agent was built for the tests of CNIs (tests/cni). Its programs and maps are pinned on a private
bpffs: everything is removed when it ends.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.config.cgroup import cgroup_root
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.maps import KernelMap
from ebpflb.lab import Lab, LabNode
from tests.bench import api
from tests.bench.cilium import endpoint, settings
from tests.bench.harness import kube_proxy, labs
from tests.bench.harness.manifests import Document
from tests.cluster.harness.binaries import is_built
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.place import Daemon
from tests.cni.networks import cilium

MISSING = "skipped: no Cilium agent is built here, which `make test-cni CNI=cilium` does"

Objects = Iterable[tuple[Document, Document]]

_PINS = Path("sys/fs/bpf")
_SERVICES = _PINS / "tc/globals/cilium_lb4_services_v2"
_START_SECONDS = 120.0
_SYNC_SECONDS = 300.0
# The agent must see the node's cgroup as the root, and no other cgroup.
_MOUNTS = f"""\
set -e
mount --bind "$0" {cgroup_root()}
mount -t tmpfs tmpfs /run
mount -t bpf bpf /{_PINS}
{cilium.KEEP_MACHINE}
exec "$@"
"""


def is_at_hand() -> bool:
    """Whether it can run without building anything first."""
    return is_built("cilium-agent", cilium.AGENT)


@contextmanager
def up(objects: Callable[[Lab], Objects]) -> Iterator["World"]:
    """The lab with Cilium in sync. `objects`: Services with their slices, for the pods of the lab.

    BenchError or EbpflbError if an agent does not get in sync.
    """
    with ExitStack() as stack:
        lab = stack.enter_context(labs.lab("bench-cilium"))
        control, client = stack.enter_context(api.api_server("bench-cilium"))
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ebpflb-bench-")))
        control.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(cilium.resources()))
        kube_proxy.join(lab, control, client)
        addresses = api.create_all(client, objects(lab))
        agents = [stack.enter_context(_agent(node, lab, control, directory)) for node in lab.nodes]
        for agent in agents:
            agent.wait_in_sync(set(addresses))
        yield World(lab, agents)
        for agent in agents:
            agent.daemon.check()


class World:
    """The lab with Cilium."""

    def __init__(self, lab: Lab, agents: Sequence["Agent"]) -> None:
        self.lab = lab
        self._agents = agents

    @contextmanager
    def programs(self) -> Iterator[list[int]]:
        """All attached programs, by descriptor; the programs that they tail-call count as
        theirs.
        """
        with ExitStack() as stack:
            found = {each for agent in self._agents for each in agent.program_ids()}
            yield [stack.enter_context(owned(libbpf.prog_by_id(each))) for each in found]


class Agent:
    """The agent of one node; `daemon`: its process."""

    def __init__(self, node: LabNode, lab: Lab, socket: Path, daemon: Daemon) -> None:
        self.daemon = daemon
        self._node, self._lab, self._socket = node, lab, socket
        self._root = Path(f"/proc/{daemon.process.pid}/root")

    def wait_in_sync(self, addresses: Set[str]) -> None:
        """Until the pods are endpoints and all these ClusterIPs have a backend."""
        socket, pods = self._socket, self._lab.pods_on(self._node.name)
        self.daemon.wait_until(lambda: endpoint.is_healthy(socket), "healthy", _START_SECONDS)
        for pod in pods:
            endpoint.add(socket, self._node, pod)
        count = len(pods) + 1
        self.daemon.wait_until(lambda: endpoint.are_ready(socket, count), "ready", _START_SECONDS)
        self.daemon.wait_until(lambda: self._served() >= addresses, "in sync", _SYNC_SECONDS)

    def program_ids(self) -> Iterator[int]:
        """The programs at its hooks."""
        for pin in (self._root / _PINS / "cilium").rglob("links/**/*"):
            if not pin.is_dir():
                with owned(libbpf.obj_get(pin)) as link:
                    yield libbpf.link_info(link).prog_id

    def _served(self) -> set[str]:
        """Addresses with a backend: the key begins with address, port and number of the backend."""
        services = KernelMap(libbpf.obj_get(self._root / _SERVICES))
        try:
            keys = [key for key, _ in services.items()]
        finally:
            services.close()
        return {str(IPv4Address(key[:4])) for key in keys if any(key[6:8])}


@contextmanager
def _agent(node: LabNode, lab: Lab, control: ControlPlane, top: Path) -> Iterator[Agent]:
    directory = top / node.name
    settings.write(directory / "settings", lab, control.kubeconfig)
    binary = str(cilium.agent())
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", _MOUNTS]
    command += [str(node.cgroup), binary, f"--config-dir={directory / 'settings'}"]
    log = directory / "log"
    with log.open("wb") as output:
        process = node.popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | _environment(node),
        )
    daemon = Daemon(f"Cilium of {node.name}", process, log)
    try:
        yield Agent(node, lab, directory / "socket", daemon)
    finally:
        daemon.stop()


def _environment(node: LabNode) -> Mapping[str, str]:
    path = f"{cilium.clang_folder()}:{os.environ['PATH']}"
    return {"K8S_NODE_NAME": node.name, "CILIUM_K8S_NAMESPACE": "kube-system", "PATH": path}
