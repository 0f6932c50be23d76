# SPDX-License-Identifier: Apache-2.0
"""An agent exits, cleanly or not, and restarts: traffic continues, and nothing is done twice."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ebpflb.agent.dataplane.flow_tables import crowded_tables, room_for_flows
from ebpflb.config.settings import load_settings
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.layout.capacity import NODE_MAPS, SERVICE_MAPS
from ebpflb.dataplane.load import compile_cache
from ebpflb.dataplane.load.pins import LINKS, generations, newest_generation
from ebpflb.lab import LabNode, manifests
from ebpflb.lab.manifests import write_atomically
from tests.e2e.harness.cluster import Cluster, started, stopped
from tests.e2e.harness.command import ebpflb, status
from tests.e2e.harness.in_force import (
    generation_of,
    offered,
    pinned_maps,
    planned,
    service_ranges,
    watched,
)
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.many_flows import NEW_FLOWS, add_flows
from tests.e2e.harness.questions import differing, everywhere, names
from tests.e2e.harness.waiting import wait_until

# Everything except what traffic changes.
CONFIGURED = {name for name in [*SERVICE_MAPS, *NODE_MAPS] if not name.startswith("lb_count_")}
# Few elements, read again and again.
SMALL = (
    *("lb_frontends", "lb_current", "lb_addrs", "lb_service_nets"),
    *("lb_devices", "lb_uplinks", "lb_subnets", "lb_netns", "lb_pod_cgroups"),
)
OBJECTS = ("links", "programs", "maps")


@pytest.fixture(scope="module")
def running(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    """An agent on the first node only."""
    with started(own_lab, tmp_path_factory.mktemp("restart"), nodes=["node1"]) as cluster:
        yield cluster


@pytest.fixture
def cluster(running):
    yield running
    running.clear()


@pytest.fixture
def agent(cluster):
    """The agent of the first node, running before and after the test."""
    agent = cluster.agents["node1"]
    yield agent
    if not agent.is_running():
        agent.start()
        agent.wait_in_sync()


def loaded(node: LabNode) -> dict[str, Any]:
    """Everything that an agent loads into the kernel, for comparison."""
    generation, maps = generation_of(node), pinned_maps(node)
    links = [(path.name, of_pin(path, libbpf.link_info)) for path in pins_of(node)]
    return {
        "links": [(name, link.id, link.prog_id) for name, link in links],
        "programs": {
            path: of_pin(path, libbpf.prog_info).id for path in generation.progs.iterdir()
        },
        "maps": {path: of_pin(path, libbpf.map_info).id for path in generation.maps.iterdir()},
        "contents": {name: dict(maps[name].items()) for name in CONFIGURED},
    }


def pins_of(node: LabNode) -> list[Path]:
    """Of the links."""
    return sorted((node.bpffs / LINKS).iterdir())


def of_pin(path: Path, look: Callable[[int], Any]) -> Any:
    """What the kernel reports about a pinned object."""
    fd = libbpf.obj_get(path)
    try:
        return look(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_an_agent_that_ends_and_comes_back_costs_no_connection(cluster, lab, agent, end):
    spec = cluster.serve(cluster.new(), lab.pods)
    first = lab.pod("pod-1-1")
    with none_fails(cluster, spec, held=True) as loads:
        loads.wait_for(first)
        getattr(agent, end)()
        loads.wait_for(first)
        agent.start()
        agent.wait_in_sync()
        loads.wait_for(first)


# With XDP, packets pass to tc until the devices are marked again.
@pytest.mark.only_in(xdp="off")
def test_no_map_has_other_contents_while_an_agent_starts(cluster, lab, agent):
    cluster.serve(cluster.new(), lab.pods)
    with service_ranges(lab), watched(agent.node, SMALL) as seen:
        assert agent.stop() == 0
        agent.start()
        agent.wait_in_sync()
    assert {name: len(contents) for name, contents in seen.items()} == dict.fromkeys(SMALL, 1)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_what_changes_while_the_agent_is_down_is_right_after_its_start(cluster, lab, agent, end):
    first, goes, comes = lab.pod("pod-1-1"), lab.pod("pod-1-2"), lab.pod("pod-2-1")
    spec, gone = cluster.serve(cluster.new(), [first, goes]), cluster.serve(cluster.new(), [first])
    with none_fails(cluster, spec) as loads, ExitStack() as ended:
        loads.wait_for(goes)
        getattr(agent, end)()
        cluster.serve(spec, [first, comes], wait=False)
        lab.remove_manifests(f"{gone.name}.yaml")
        agent.start()
        agent.wait_in_sync()
        assert offered(agent.node) == planned(agent.node)
        loads.wait_for(comes)
        ended.enter_context(stopped(lab, goes))
        loads.wait_for(first)
    assert all(set(each.pods) == names([first, goes, comes]) for each in loads.results.values())


def test_a_start_with_unreadable_manifests_removes_nothing(cluster, lab, agent):
    first, second = lab.pod("pod-1-2"), lab.pod("pod-2-1")
    spec, gone = cluster.serve(cluster.new(), [first]), cluster.serve(cluster.new(), [first])
    agent.kill()
    lab.remove_manifests(f"{gone.name}.yaml")
    write_atomically(agent.node.manifests, f"{spec.name}.yaml", b"kind: [")
    agent.start()
    agent.wait_in_sync()
    assert differing(everywhere(cluster, spec), [first]) == {}
    assert spec.name in str(status(agent.node)["agent"]["source_errors"])
    cluster.serve(spec, [second])
    assert differing(everywhere(cluster, spec), [second]) == {}


def test_the_node_object_may_come_last_and_without_addresses(cluster, lab, agent):
    specs = [cluster.serve(cluster.new(), lab.pods)]
    objects = manifests.nodes(lab.layout)
    bare = [{**each, "status": {}} for each in objects]
    agent.kill()
    assert ebpflb(agent.node, "cleanup").returncode == 0
    lab.remove_manifests("nodes.yaml")
    try:
        agent.start()
        agent.wait_in_sync()
        for nodes in ([], bare, objects):
            lab.write_manifests(nodes, "nodes.yaml")
            # Files are read in the order of their names, so the Nodes are known before it is
            # served.
            specs.append(cluster.serve(cluster.new(), lab.pods))
            assert [differing(everywhere(cluster, each), lab.pods) for each in specs[-2:]] == [
                {}
            ] * 2
    finally:
        lab.write_manifests(objects, "nodes.yaml")


def test_an_agent_keeps_others_from_removing_what_is_compiled(agent):
    descriptors = Path(f"/proc/{status(agent.node)['agent']['pid']}/fd").iterdir()
    assert compile_cache.DIRECTORY in {path.resolve() for path in descriptors}


def test_sigterm_ends_an_agent_in_order(cluster, agent):
    assert agent.stop() == 0
    assert "stopped; loaded programs keep running" in agent.said().splitlines()[-1]


def has_room(node: LabNode) -> bool:
    """Whether the flow tables have enough space not to grow before more flows arrive."""
    most = room_for_flows(load_settings({}, {})).evicting
    is_settled = len(list(generations(node.bpffs))) == 1
    return is_settled and not crowded_tables(pinned_maps(node), most)


def test_nothing_is_done_again_where_all_is_as_it_should_be(cluster, lab, agent):
    cluster.serve(cluster.new(), lab.pods)
    ranges = ["192.0.2.0/24", "2001:db8::/32"]
    cluster.serve(cluster.new("LoadBalancer", loadBalancerSourceRanges=ranges), lab.pods)
    wait_until(lambda: has_room(agent.node), "tables that grow have grown")
    before = loaded(agent.node)
    agent.kill()
    agent.start()
    agent.wait_in_sync()
    assert loaded(agent.node) == before
    assert "hooks changed" not in agent.said()


def remove_pins(node: LabNode, *, crowded: bool = False) -> None:
    """While the agent is suspended: what it pins again meanwhile would interfere.

    crowded: also fill the tables of new flows, so that they grow before missing pins are looked
    for.
    """
    pid = status(node)["agent"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        small = pinned_maps(node)
        shutil.rmtree(node.bpffs)
        for name in NEW_FLOWS if crowded else ():
            add_flows(small[name], range(small[name].max_entries // 4 + 1))
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_for_pins(node: LabNode, links: int) -> None:
    wait_until(lambda: newest_generation(node.bpffs), "maps and programs are pinned")
    wait_until(lambda: len(pins_of(node)) == links, "links are pinned")


def test_removed_pins_cost_no_connection_and_are_restored(cluster, lab, agent):
    spec = cluster.serve(cluster.new(), lab.pods)
    links = len(pins_of(agent.node))
    first = lab.pod("pod-1-1")
    with none_fails(cluster, spec, held=True) as loads:
        loads.wait_for(first)
        remove_pins(agent.node, crowded=True)
        wait_for_pins(agent.node, links)
        loads.wait_for(first)
        assert "enlarging maps" in agent.said()
        agent.kill()
        agent.start()
        agent.wait_in_sync()
        loads.wait_for(first)


def test_pins_that_come_back_are_those_of_the_same_objects(cluster, lab, agent):
    cluster.serve(cluster.new(), lab.pods)
    wait_until(lambda: has_room(agent.node), "tables that grow have grown")
    before = loaded(agent.node)
    remove_pins(agent.node)
    wait_for_pins(agent.node, len(before["links"]))
    agent.kill()
    agent.start()
    agent.wait_in_sync()
    after = loaded(agent.node)
    assert [after[what] for what in OBJECTS] == [before[what] for what in OBJECTS]
    assert "hooks changed" not in agent.said()


def test_without_an_agent_everything_is_served_and_status_says_who_is_missing(cluster, lab, agent):
    spec = cluster.serve(cluster.new(), lab.pods)
    assert status(agent.node)["problems"] == []
    synced = status(agent.node)["agent"]["last_sync"]
    agent.stop()
    assert differing(everywhere(cluster, spec), lab.pods) == {}
    found = status(agent.node)
    assert (found["state"], found["loaded"]["last_sync"][:19]) == ("agent down", synced[:19])
    assert found["shown"] == f"agent down, serving the state of {synced[11:16]}"
    assert found["problems"] == ["no agent answers at 127.0.0.1:10249"]
    assert (found["healthy"], found["loaded"]["missing_hooks"]) == (False, [])
