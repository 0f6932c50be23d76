# SPDX-License-Identifier: Apache-2.0
"""The rows of the demo, and what those of several tables need."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import open_maps
from ebpflb.dataplane.load.pins import newest_generation
from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.lab.ask import enough
from ebpflb.lab.cluster import Lab
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import LabNode, Member
from ebpflb.model.address import format_address
from ebpflb.model.service import ServiceName

# No Service of the demo has more pods.
QUESTIONS = enough(6)
PATIENCE = 5.0
_WAIT_SECONDS = 60.0

CLUSTER = ServiceSpec("web", 21, "NodePort", node_port=30100)


class DemoRow(NamedTuple):
    """Right if what was seen is exactly what was expected."""

    what: str
    expected: str
    seen: str

    @property
    def is_right(self) -> bool:
        return self.expected == self.seen


def wait_until(condition: Callable[[], bool]) -> None:
    """Return when it is true, or in the end without; then the table shows what is not so."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def await_backends(lab: Lab, spec: ServiceSpec, pods: Sequence[Member]) -> None:
    """Until new connections to a Service get these pods on every node."""
    wanted = {address for pod in pods for address in pod.addresses}
    wait_until(lambda: all(_offered(node, spec) == wanted for node in lab.nodes))


def _offered(node: LabNode, spec: ServiceSpec) -> set[str]:
    generation = newest_generation(node.bpffs)
    if generation is None:
        return set()
    found = read_frontends(open_maps(generation.maps), ServiceName("default", spec.name))
    sets = [each.frontend.others for each in found]
    return {format_address(each.address) for offered in sets for each in offered.backends}
