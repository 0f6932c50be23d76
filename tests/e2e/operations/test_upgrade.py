# SPDX-License-Identifier: Apache-2.0
"""A version with another layout takes over, or maps grow: under load, without losing anything."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebpflb import lab as lab_package
from ebpflb.dataplane.load.source_text import bpf_directory
from ebpflb.lab import LabNode
from tests.builders import (
    endpoint_manifest,
    port_manifest,
    service_manifest,
    slice_manifest,
    write_manifests,
)
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.command import ebpflb, error_line, status
from tests.e2e.harness.in_force import pinned_maps, wait_in_force
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.many_flows import NEW_FLOWS, add_flows
from tests.e2e.harness.newer_layout import NEWER_LAYOUT, change_layout
from tests.e2e.harness.questions import differing, everywhere, pods_at
from tests.e2e.harness.waiting import wait_until

# More frontends than the initial maps can hold.
SERVICES, PORTS = 150, 30
FIRST_PORT = 1000
MANY_FILE = "many.json"


@pytest.fixture
def cluster(own_lab, tmp_path) -> Iterator[Cluster]:
    """An agent on the first node only; its pins are removed after the test."""
    with contextlib.ExitStack() as stack:
        (node, *_) = own_lab.nodes
        stack.callback(ebpflb, node, "cleanup", EBPFLB_BPFFS_ROOT=str(node.bpffs))
        yield stack.enter_context(started(own_lab, tmp_path, nodes=["node1"]))


@pytest.fixture
def agent(cluster):
    """The agent of the first node."""
    return cluster.agents["node1"]


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A checkout of a version whose frontends and backends have one more field each."""
    checkout = tmp_path / "newer"
    package = Path(lab_package.__file__).parents[1]
    unwanted = shutil.ignore_patterns("__pycache__", "_bpf")
    shutil.copytree(package, checkout / "ebpflb", ignore=unwanted)
    shutil.copytree(bpf_directory(), checkout / "bpf")
    change_layout(checkout / "ebpflb", checkout / "bpf")
    return checkout


def outdated_hooks(node: LabNode) -> list[str]:
    """The hooks that run programs of a generation other than the current one."""
    hooks = status(node)["loaded"]["hooks"]
    assert len(hooks) > len(node.host_devices)
    return [hook["hook"] for hook in hooks if not hook["current"]]


def room_in(node: LabNode, name: str) -> int:
    """The capacity of a map."""
    return pinned_maps(node)[name].max_entries


def generations(node: LabNode) -> list[str]:
    """The pinned generations."""
    return sorted(path.name for path in node.bpffs.iterdir() if path.name != "links")


def is_newer_alone(node: LabNode) -> bool:
    """Whether only the newer version's pins exist."""
    (*_, last) = found = generations(node)
    return len(found) == 1 and last.startswith(f"{NEWER_LAYOUT}-")


def serve_many(cluster: Cluster) -> tuple[str, int]:
    """Write Services with many ports in front of one pod; returns the last of the frontends."""
    (node,) = cluster.nodes
    endpoints = [endpoint_manifest(cluster.lab.pod("pod-1-1").ipv4, node.name)]
    numbers = range(FIRST_PORT, FIRST_PORT + PORTS)
    ports = [port_manifest(number, f"p{number}") for number in numbers]
    targets = [port_manifest(cluster.lab.config.port, f"p{number}") for number in numbers]
    objects = []
    for number in range(1, SERVICES + 1):
        name, address = f"many-{number}", f"10.96.200.{number}"
        objects.append(service_manifest(name, cluster_ip=address, ports=ports))
        objects.append(
            slice_manifest(f"{name}-1", service=name, ports=targets, endpoints=endpoints)
        )
    write_manifests(node.manifests / MANY_FILE, *objects)
    return address, numbers[-1]


def test_a_version_with_another_layout_takes_over_under_load(cluster, lab, agent, newer):
    spec = cluster.serve(cluster.new(), lab.pods)
    with none_fails(cluster, spec, held=True) as loads, contextlib.chdir(newer):
        loads.wait_for(lab.pod("pod-1-1"))
        assert agent.stop() == 0
        agent.start()
        agent.wait_in_sync()
        # The load ends a little later, when hooks and maps are those of the newer version. Its
        # flows may have made their tables grow meanwhile.
        wait_until(lambda: is_newer_alone(agent.node), "one generation is left")
        wait_until(lambda: outdated_hooks(agent.node) == [], "all hooks are its own")
        assert differing(everywhere(cluster, spec), lab.pods) == {}
    assert agent.stop() == 0
    refused = error_line(ebpflb(agent.node, "run"))
    assert f"made by a newer version (map layout {NEWER_LAYOUT}, this one knows" in refused
    assert differing(everywhere(cluster, spec), lab.pods) == {}


def test_maps_grow_under_load(cluster, lab, agent):
    spec = cluster.serve(cluster.new(), lab.pods)
    room = room_in(agent.node, "lb_frontends")
    with none_fails(cluster, spec, held=True) as loads:
        loads.wait_for(lab.pod("pod-1-1"))
        last = serve_many(cluster)
        # Reading that many frontends in a loop would slow the agent down.
        wait_until(lambda: room_in(agent.node, "lb_frontends") > room, "the maps have grown", 150)
        wait_in_force(cluster.nodes)
        loads.wait_for(lab.pod("pod-1-1"))
    # The flows of the load may have made their tables grow meanwhile.
    wait_until(lambda: len(generations(agent.node)) == 1, "one generation is left")
    assert outdated_hooks(agent.node) == []
    assert pods_at(lab.pod("pod-1-2"), *last) == {"pod-1-1"}


def test_tables_of_new_flows_grow_under_load(cluster, lab, agent):
    spec = cluster.serve(cluster.new(), lab.pods)
    small = pinned_maps(agent.node)
    crowd = range(small["lb_ct_udp"].max_entries // 4 + 1)
    with none_fails(cluster, spec, held=True) as loads:
        loads.wait_for(lab.pod("pod-1-1"))
        for name in NEW_FLOWS:
            add_flows(small[name], crowd)
        wait_until(
            lambda: all(room_in(agent.node, name) > small[name].max_entries for name in NEW_FLOWS),
            "the tables have grown",
        )
        wait_in_force(cluster.nodes)
        loads.wait_for(lab.pod("pod-1-1"))
    assert outdated_hooks(agent.node) == []
    large = pinned_maps(agent.node)
    for name in NEW_FLOWS:
        assert large[name].max_entries == 4 * small[name].max_entries
        assert sum(chunk.size for chunk in large[name].chunks()) >= 2 * len(crowd)
