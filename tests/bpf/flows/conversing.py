# SPDX-License-Identifier: Apache-2.0
"""TCP connections under the hooks of a cgroup."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from ebpflb.dataplane.attach.links import CGROUP_HOOKS
from ebpflb.model.address import Protocol
from tests.bpf.harness.asking import hooked_cgroup
from tests.bpf.harness.conversing import Conversing
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind


@contextmanager
def under_hooks(loaded: Loaded, machine: Node, name: str) -> Iterator[Conversing]:
    hooks = {hook: kind for hook, kind in CGROUP_HOOKS.items() if hook in loaded.programs}
    with hooked_cgroup(loaded, name, hooks) as cgroup:
        with machine.entered():
            made = Conversing(cgroup)
        with closing(made):
            yield made


def service(datapath: Datapath, tcp: Kind) -> tuple[End, End, int]:
    """A frontend, its backend, and the backend's index."""
    frontend, backend = End(tcp.net.cluster_ip, 80), End(tcp.net.node, 18080)
    index = datapath.backend(backend, Protocol.TCP)
    datapath.frontend(frontend, Protocol.TCP, local=[index])
    return frontend, backend, index
