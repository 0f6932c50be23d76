# SPDX-License-Identifier: Apache-2.0
"""The cluster itself, so that later failures on it are due to the code under test."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ebpflb.config.cgroup import cgroup_root
from ebpflb.errors import ConfigError, EbpflbError
from tests.cluster.harness import state, teardown, workloads
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.layout import Layout, v1_hierarchies
from tests.cluster.harness.pod_network import BRIDGE, PTP
from tests.e2e.harness.waiting import wait_until
from tests.leftovers import one_at_a_time

SPACE = "harness"
BPFFS_OWN = {"maps.debug", "progs.debug"}


def traces(layout: Layout) -> list[str]:
    """Everything on this machine that still belongs to a cluster."""
    roots = [layout.cgroup(), *(Path(f"{h}{layout.cgroup_path()}") for h in v1_hierarchies())]
    paths = [layout.folder, Path("/sys/class/net", layout.machine_device), *roots]
    found = [str(path) for path in paths if path.exists()]
    found += [str(path) for path in Path("/run/netns").glob(layout.namespace("*"))]
    mounts = Path("/proc/mounts").read_text().splitlines()
    return found + [line for line in mounts if str(layout.folder) in line]


@pytest.fixture(
    scope="module",
    params=[("nftables", PTP), ("iptables", BRIDGE)],
    ids=["nftables-ptp", "iptables-bridge"],
)
def proxied(request):
    """A cluster with kube-proxy, two echo servers behind a Service, and a client pod."""
    cluster = Cluster.up(f"proxy-{os.getpid()}", cni=request.param[1], kube_proxy=request.param[0])
    try:
        objects = [
            workloads.deployment("web"),
            workloads.service("web", type="NodePort", ipFamilyPolicy="RequireDualStack"),
            workloads.asker("asker", "node1"),
        ]
        workloads.apply(cluster, SPACE, objects)
        yield cluster
    finally:
        cluster.down()


def address(cluster):
    return workloads.field(cluster, SPACE, "service/web", "{.spec.clusterIP}")


def node_port(cluster):
    return workloads.field(cluster, SPACE, "service/web", "{.spec.ports[0].nodePort}")


def both_answer(answers):
    return len({answer["pod"] for answer in answers}) == 2


def test_a_service_answers_a_pod_by_its_name(proxied):
    def ask():
        return workloads.ask_from_pod(proxied, SPACE, "asker", f"http://web.{SPACE}", 20)

    wait_until(lambda: both_answer(ask()), "two pods behind a name")


def test_a_service_answers_each_node(proxied):
    for node in proxied.nodes:
        url = f"http://{address(proxied)}"
        wait_until(lambda: both_answer(workloads.ask(node, url, 20)), f"{url} on {node.name}")  # noqa: B023


def test_a_node_port_of_each_node_answers_the_client_outside(proxied):
    for node in proxied.nodes:
        url = f"http://{node.ip}:{node_port(proxied)}"
        wait_until(lambda: both_answer(workloads.ask(proxied.client, url, 20)), url)  # noqa: B023


def test_a_service_answers_over_ipv6(proxied):
    both = workloads.field(proxied, SPACE, "service/web", "{.spec.clusterIPs[1]}")
    url = f"http://[{both}]"
    wait_until(lambda: both_answer(workloads.ask(proxied.nodes[0], url, 20)), url)
    url = f"http://[{proxied.nodes[1].ip6}]:{node_port(proxied)}"
    wait_until(lambda: both_answer(workloads.ask(proxied.client, url, 20)), url)
    url = f"http://[{both}]"
    assert workloads.ask_from_pod(proxied, SPACE, "asker", url)


def test_a_rolling_restart_loses_no_connection(proxied):
    url = f"http://{proxied.nodes[0].ip}:{node_port(proxied)}"
    wait_until(lambda: workloads.ask(proxied.client, url), url)
    before = workloads.pods(proxied, SPACE, "web")
    load = workloads.Load.start(proxied.client, url, 20)
    proxied.kubectl("-n", SPACE, "rollout", "restart", "deployment/web")
    proxied.control_plane.wait("-n", SPACE, "rollout", "status", "deployment/web")
    wait_until(lambda: before.isdisjoint(workloads.pods(proxied, SPACE, "web")), "others", 60)
    counted = load.stop()
    assert not counted["failures"]
    assert before & counted["answers"].keys()
    assert counted["answers"].keys() - before


def test_an_external_address_answers_the_client_outside(proxied):
    external = {"externalIPs": ["203.0.113.7"]}
    workloads.apply(proxied, SPACE, [workloads.service("outside", app="web", **external)])
    url = "http://203.0.113.7"
    wait_until(lambda: both_answer(workloads.ask(proxied.client, url, 20)), url)


def test_a_service_answers_datagrams(proxied):
    assert workloads.ask_udp(proxied.nodes[0], f"{address(proxied)}:80")


def test_what_stands_still_is_not_waited_for_and_named(cluster):
    item = workloads.asker(
        "stuck", "node1", image="example.invalid/none:1", imagePullPolicy="Never"
    )
    cluster.kubectl("apply", "-f", "-", input=json.dumps(item))
    try:
        with pytest.raises(EbpflbError) as caught:
            cluster.control_plane.wait("wait", "--for=condition=Ready", "pod/stuck", seconds=3)
    finally:
        cluster.kubectl("delete", "pod/stuck")
    assert "no pod has changed for 3 s" in str(caught.value)
    assert re.search(r"stuck .*ErrImageNeverPull", str(caught.value))


def test_the_pods_of_a_service_are_on_both_nodes(cluster):
    workloads.apply(cluster, SPACE, [workloads.deployment("web"), workloads.service("web")])
    path = "{.items[*].spec.nodeName}"
    found = cluster.kubectl("-n", SPACE, "get", "pods", "-l", "app=web", "-o", f"jsonpath={path}")
    assert sorted(found.split()) == ["node1", "node2"]


def test_without_a_proxy_pods_answer_and_services_do_not(cluster):
    workloads.apply(cluster, SPACE, [workloads.deployment("web"), workloads.service("web")])
    path = "{.items[*].status.podIP}"
    found = cluster.kubectl("-n", SPACE, "get", "pods", "-l", "app=web", "-o", f"jsonpath={path}")
    for node in cluster.nodes:
        for pod in found.split():
            assert workloads.ask(node, f"http://{pod}:{workloads.PORT}")
        assert not workloads.ask(node, f"http://{address(cluster)}")


def test_nodes_share_neither_bpffs_nor_files(cluster):
    first, second = cluster.nodes
    askers = [workloads.asker(f"on-{node.name}", node.name) for node in cluster.nodes]
    workloads.apply(cluster, SPACE, askers)
    assert first.exec(["mkdir", "-p", "/sys/fs/bpf/first"]).returncode == 0
    assert not Path("/sys/fs/bpf/first").exists()
    for place in ("/sys/fs/bpf", "/run/netns", "/var/lib/kubelet/pods", "/var/log/pods"):
        here, there = (set(node.exec(["ls", place]).stdout.split()) for node in (first, second))
        assert here - BPFFS_OWN
        assert not here & there - BPFFS_OWN, place


def test_the_cgroup_tree_of_a_node_begins_with_its_own(cluster):
    for node in cluster.nodes:
        assert "daemons" in node.exec(["ls", cgroup_root()]).stdout.split()
        own = node.exec(["cat", "/proc/self/cgroup"]).stdout.splitlines()[-1]
        assert own.endswith(f"/{node.name}/daemons")


def test_every_process_of_a_node_is_in_its_cgroup(cluster):
    workloads.apply(cluster, SPACE, [workloads.asker("asker", "node1")])
    uid = workloads.field(cluster, SPACE, "pod/asker", "{.metadata.uid}")
    groups = [
        path.read_text() for path in cluster.nodes[0].cgroup.rglob(f"pod{uid}/*/cgroup.procs")
    ]
    assert sum(len(group.split()) for group in groups) == 2


def test_the_api_comes_back_after_a_stop(control_plane):
    control_plane.kubectl("create", "configmap", "kept")
    control_plane.stop_api()
    with pytest.raises(EbpflbError, match="refused"):
        control_plane.kubectl("get", "configmap", "kept")
    control_plane.start_api()
    assert "kept" in control_plane.kubectl("get", "configmap", "kept")


def test_a_watch_from_before_a_compaction_is_gone(control_plane):
    control_plane.kubectl("create", "configmap", "before")
    version = "jsonpath={.metadata.resourceVersion}"
    before = control_plane.kubectl("get", "configmap", "before", "-o", version)
    control_plane.kubectl("create", "configmap", "after")
    assert control_plane.compact() > int(before)
    control_plane.stop_api()
    control_plane.start_api()
    path = f"/api/v1/namespaces/default/configmaps?watch=1&resourceVersion={int(before) - 1}"
    assert '"code":410' in control_plane.kubectl("get", "--raw", f"{path}&timeoutSeconds=5")


def test_the_audit_log_names_user_and_verb(control_plane):
    control_plane.kubectl("get", "services", "-A")
    asked = [
        (event["user"]["username"], event["verb"], event["objectRef"]["resource"])
        for event in control_plane.audit_events()
        if "objectRef" in event
    ]
    assert ("admin", "list", "services") in asked


def test_a_name_is_taken_only_once(control_plane):
    with pytest.raises(ConfigError, match="exists"):
        ControlPlane.up(control_plane.state.name)


def test_nothing_is_left_of_a_cluster():
    made = Cluster.up(f"gone-{os.getpid()}", nodes=1, cni=BRIDGE)
    layout = made.control_plane.layout
    processes = [
        item.process for place in (*made.nodes, made.control_plane.place) for item in place.daemons
    ]
    assert len(traces(layout)) > 5
    made.down()
    assert not traces(layout)
    assert all(process.returncode is not None for process in processes)


def test_nothing_is_left_of_a_cluster_whose_process_was_killed():
    name = f"killed-{os.getpid()}"
    program = (
        f"from tests.cluster.harness.cluster import Cluster; Cluster.up({name!r}, nodes=1); input()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as child:
        while not (state.folder_of(name).exists() and state.load(name).complete):
            assert child.poll() is None
            time.sleep(0.2)
        with one_at_a_time():
            child.kill()
            child.wait()
            layout = state.load(name).layout
            assert traces(layout)
            assert f"cluster {name!r}: removed" in list(teardown.remove_orphans())
    assert not traces(layout)
