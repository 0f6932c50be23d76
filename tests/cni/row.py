# SPDX-License-Identifier: Apache-2.0
"""A row of the matrix: a CNI and its properties; and the list of all rows."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.pod_network import PodNetwork
from tests.cni import networks


@dataclass(frozen=True, slots=True)
class Cni:
    """One row of docs/compatibility.md.

    title: its name in the table. version: what was run, with its origin.
    pods, hosts: shell patterns of the devices on a node that the agent must take for a pod's, and
    for the node's own; it must take no other, and at least one of each pattern.
    lacks: tests of test_paths.py that fail with any Service proxy, each with the reason, which the
    table shows. They are not run.
    fails: tests that fail with ebpflb, each with the reason.
    add: installs what assigns load-balancer addresses, once ebpflb serves. Without it the tests do
    that themselves.
    values: more values of the chart, as a user of this CNI has to set them.
    """

    network: PodNetwork
    title: str
    version: str
    pods: tuple[str, ...]
    hosts: tuple[str, ...] = ("eth0",)
    ipv6: bool = True
    lacks: dict[str, str] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    add: Callable[[Cluster], None] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For --cni."""
        return self.network.name


@cache
def rows() -> dict[str, Cni]:
    """All of them, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(networks.__path__))
    modules = [importlib.import_module(f"{networks.__name__}.{name}") for name in names]
    return {row.name: row for module in modules for row in module.ROWS}
