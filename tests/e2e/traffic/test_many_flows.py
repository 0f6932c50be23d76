# SPDX-License-Identifier: Apache-2.0
"""A node with half a million established flows: the table grows with them, and none is lost."""

import contextlib
from collections.abc import Iterator
from errno import E2BIG

import pytest

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.view.dump import map_fills
from ebpflb.errors import MapError
from ebpflb.lab import LabNode
from ebpflb.lab.member import NodeAgent
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb, metric
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.many_flows import add_flows
from tests.e2e.harness.questions import names, pods_at
from tests.e2e.harness.waiting import wait_until

TABLE = "lb_conntrack"
FLOWS, ENTRIES = 1 << 19, 1 << 20
FEW = 1 << 16
# In each family.
HELD = 200
MIB = 1 << 20


@pytest.fixture
def cluster(own_lab, tmp_path) -> Iterator[Cluster]:
    """An agent on the first node, with small flow tables; its pins are removed at the end."""
    (node, *_) = own_lab.nodes
    with contextlib.ExitStack() as stack:
        stack.callback(ebpflb, node, "cleanup", EBPFLB_BPFFS_ROOT=str(node.bpffs))
        yield stack.enter_context(started(own_lab, tmp_path, room(FEW), nodes=["node1"]))


def room(flows: int) -> tuple[str, ...]:
    """The options of an agent with space for this many flows."""
    return f"--conntrack-min={flows}", "--conntrack-max-per-core=0"


def memory(node: LabNode) -> int:
    """Bytes of the table, as kernels from 6.4 on report them: those in use."""
    return next(each.memory for each in map_fills(pinned_maps(node)) if each.name == TABLE)


@contextlib.contextmanager
def held(cluster: Cluster, place: tuple[str, int]) -> Iterator[None]:
    """Connections from outside that stay open, and new ones; none fails, none changes its pod."""
    client = cluster.lab.client
    with (
        client.start_load(
            *place, count=HELD, workers=HELD, exchanges=0, interval=0.5, timeout=20.0
        ) as staying,
        client.start_load(*place, rate=20.0, timeout=20.0) as new,
    ):
        yield
        results = {"held": staying.stop(), "new": new.stop()}
    assert {name: (each.failed, each.errors) for name, each in results.items()} == {
        "held": (0, {}),
        "new": (0, {}),
    }
    assert results["held"].attempted == HELD


def with_more_room(cluster: Cluster, stack: contextlib.ExitStack) -> BpfMap:
    """Restart the agent with a larger limit while the table is nearly full; returns the new
    table.
    """
    agent = cluster.agents["node1"]
    small = pinned_maps(agent.node)[TABLE]
    add_flows(small, range(FEW - 10_000))
    assert agent.stop() == 0
    larger = NodeAgent(agent.node, agent.log, room(FLOWS))
    stack.callback(larger.kill)
    larger.start()
    larger.wait_in_sync()
    table = pinned_maps(agent.node)[TABLE]
    assert (small.max_entries, table.max_entries) == (2 * FEW, ENTRIES)
    used = sum(chunk.size for chunk in table.chunks())
    assert used > 2 * (FEW - 10_000)
    return table


def test_the_table_grows_with_the_flows_and_a_full_one_takes_new_connections(cluster, lab):
    (node,) = cluster.nodes
    assert memory(node) < 10 * MIB
    spec = cluster.serve(cluster.new(), lab.pods)
    with contextlib.ExitStack() as stack:
        for version in cluster.versions:
            stack.enter_context(held(cluster, (address_of(node, version), spec.node_port)))
        wait_until(lambda: cluster.backend(spec, lab.pods[0]).connections, "connections")
        table = with_more_room(cluster, stack)
        add_flows(table, range(FEW, FLOWS - 10_000))
        assert memory(node) > 150 * MIB
        doctor = ebpflb(node, "doctor").stdout
        assert f"{TABLE}: 9" in doctor
        changed = cluster.serve(cluster.new(), lab.pods[:1], wait=False)
        address = lab.cluster_ip(changed.number, 4)
        wait_until(
            lambda: pods_at(lab.pods[1], address, changed.port) == names(lab.pods[:1]), "a change"
        )
        with pytest.raises(MapError) as full:
            add_flows(table, range(FLOWS, 2 * FLOWS))
        assert full.value.errno == E2BIG
        wait_until(
            lambda: metric(node, f'ebpflb_map_entries{{map="{TABLE}"}}') >= 0.99 * ENTRIES,
            "full",
        )
        assert f"{TABLE}: 100%" in ebpflb(node, "doctor").stdout
        target = f"{node.ipv4}:{spec.node_port}"
        assert f"{TABLE} is full" in ebpflb(node, "explain", lab.client.ipv4, target).stdout
        assert pods_at(lab.client, node.ipv4, spec.node_port) <= names(lab.pods)
