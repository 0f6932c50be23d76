# SPDX-License-Identifier: Apache-2.0
"""What `ebpflb flows` shows on a node, of real connections."""

import gzip
import json
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sys import byteorder
from typing import Any

import pytest

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.enums import FlowLost
from ebpflb.lab import LabNode, Member
from ebpflb.lab.ask import Question, ask
from ebpflb.lab.member import NodeAgent
from tests.e2e.harness.cluster import address_of, started
from tests.e2e.harness.command import PROGRAM, ebpflb, error_line
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import REFUSED, fate
from tests.e2e.harness.waiting import wait_until, wait_until_equal

PORT = 80
# A ring of 1 MiB has room for 7281 records; each connection has two.
MORE_THAN_A_RING = 4500
Flow = dict[str, Any]


def flows(node: LabNode, *arguments: str) -> list[Flow]:
    """The flows that the agent of a node has kept."""
    done = ebpflb(node, "flows", "-o", "json", "--last", "1000", *arguments)
    assert done.returncode == 0, done.stderr
    found: list[Flow] = json.loads(done.stdout)
    return found


def wait_for_flow(node: LabNode, *arguments: str) -> Flow:
    """The one flow that matches; waits for it."""
    (found,) = wait_until(lambda: flows(node, *arguments), "a flow")
    return found


def connect(member: Member, address: str, port: int) -> str:
    """Who answers one TCP connection."""
    (answer,) = ask(member, Question(address, port))
    return str(answer["pod"])


@pytest.mark.parametrize("version", [4, 6])
def test_a_connection_of_a_pod_through_a_cluster_ip(cluster, lab, version):
    spec = cluster.serve(cluster.new("ClusterIP"), lab.pods_on("node2")[:1])
    client, (server, *_) = lab.pod("pod-1-1"), lab.pods_on("node2")
    address = lab.cluster_ip(spec.number, version)
    began = time.monotonic()
    assert connect(client, address, PORT) == server.name
    flow = wait_for_flow(lab.node("node1"), "--service", spec.name, "--event", "end")
    took = time.monotonic() - began
    assert (flow["verdict"], flow["ended"], flow["path"]) == ("forwarded", "closed", "socket")
    assert (flow["protocol"], flow["family"]) == ("TCP", f"IPv{version}")
    assert flow["client"]["address"] == address_of(client, version)
    assert flow["client"]["pod"] == f"default/{client.name}"
    assert flow["frontend"] == {"address": address, "port": PORT, "type": "ClusterIP"}
    assert (flow["service"]["namespace"], flow["service"]["name"]) == ("default", spec.name)
    backend = flow["backend"]
    assert backend["address"] == address_of(server, version)
    assert (backend["pod"], backend["node"]) == (f"default/{server.name}", "node2")
    assert (backend["zone"], backend["local"]) == ("zone-b", False)
    assert flow["source"] == "this_node"
    assert flow["bytes"]["original"] == len("who\n")
    assert flow["bytes"]["reply"] > 0
    assert 0 < flow["rtt_seconds"] < took
    assert 0 <= flow["seconds"] < took
    assert flows(lab.node("node2"), "--service", spec.name) == []


def test_a_time_in_the_past_has_what_its_records_tell_and_each_is_found_by_its_id(cluster, lab):
    spec = cluster.serve(cluster.new("ClusterIP"), lab.pods_on("node2")[:1])
    client, node = lab.pod("pod-1-1"), lab.node("node1")
    for version in (4, 6):
        connect(client, lab.cluster_ip(spec.number, version), PORT)
    ended = ("--service", spec.name, "--event", "end")
    wait_until_equal(lambda: len(flows(node, *ended)), 2)
    found = flows(node, *ended)
    for each in found:
        assert flows(node, "--id", each["id"]) == [each]
    done = ebpflb(node, "top", "--at", "0s", "--window", "1h", "--service", spec.name, "-o", "json")
    past = json.loads(done.stdout)
    (carried,) = past["services"]
    assert carried["connections"] * 3600 == pytest.approx(2)
    assert carried["reply_bytes"] * 3600 == pytest.approx(
        sum(each["bytes"]["reply"] for each in found)
    )
    assert (carried["active"], carried["cross_node_share"], carried["troubles"]) == (None, 1, [])
    pods = {each["pod"] for each in carried["backends"]}
    assert pods == {f"default/{lab.pods_on('node2')[0].name}"}
    assert past["records"]["count"] >= 2


@pytest.mark.parametrize("version", [4, 6])
def test_a_connection_from_outside_through_a_node_port(cluster, lab, version):
    spec = cluster.serve(cluster.new(), lab.pods_on("node2")[:1])
    node, (server, *_) = lab.node("node1"), lab.pods_on("node2")
    address = address_of(node, version)
    assert connect(lab.client, address, spec.node_port) == server.name
    flow = wait_for_flow(node, "--service", spec.name, "--event", "end")
    assert (flow["verdict"], flow["ended"], flow["path"]) == ("forwarded", "closed", "tc")
    assert flow["client"]["address"] == address_of(lab.client, version)
    assert flow["frontend"] == {"address": address, "port": spec.node_port, "type": "NodePort"}
    assert flow["backend"]["pod"] == f"default/{server.name}"
    assert (flow["source"], flow["snat"]) == ("elsewhere", True)
    assert flow["bytes"]["original"] == len("who\n")


@pytest.mark.parametrize("version", [4, 6])
def test_what_is_refused_says_why_and_can_be_filtered(cluster, lab, version):
    spec = cluster.serve(cluster.new("ClusterIP"))
    address = lab.cluster_ip(spec.number, version)
    client, node = lab.pod("pod-1-1"), lab.node("node1")
    assert fate(client, address, PORT) == REFUSED
    flow = wait_for_flow(node, "--to", address, "--verdict", "refused,dropped")
    assert (flow["event"], flow["reason"]) == ("refused", "no_endpoint")
    pod = {"address": address_of(client, version), "pod": f"default/{client.name}"}
    assert flow["client"] == pod
    assert "backend" not in flow
    assert flows(node, "--to", address, "--event", "start") == []
    assert flows(node, "--to", address, "--from", client.name) == [flow]


@pytest.mark.parametrize("version", [4, 6])
def test_what_its_backend_refuses_has_failed_at_both_hooks(cluster, lab, version):
    spec = cluster.serve(cluster.new(), lab.pods_on("node2")[:1], target_port=9)
    node, service = lab.node("node1"), ("--service", spec.name)
    for client, address, port in (
        (lab.pod("pod-1-1"), lab.cluster_ip(spec.number, version), PORT),
        (lab.client, address_of(node, version), spec.node_port),
    ):
        assert fate(client, address, port) == REFUSED

    def ends() -> list[tuple[str, str]]:
        failed = flows(node, *service, "--verdict", "failed")
        return sorted((each["path"], each["ended"]) for each in failed)

    wait_until_equal(ends, [("socket", "backend_refused"), ("tc", "backend_refused")])
    assert flows(node, *service, "--verdict", "forwarded,refused,dropped") == []
    shown = ebpflb(node, "flows", *service).stdout.splitlines()[1:]
    assert [" failed " in line for line in shown] == [True, True]


@pytest.mark.parametrize("version", [4, 6])
def test_a_udp_flow_that_times_out_has_an_end(own_lab, tmp_path, version):
    options = ("--conntrack-udp-timeout", "1s", "--conntrack-udp-timeout-stream", "2s")
    with started(own_lab, tmp_path, options, nodes=["node1"]) as cluster:
        node, (server, *_) = own_lab.node("node1"), own_lab.pods_on("node2")
        spec = cluster.serve(cluster.new(), [server])
        address = address_of(node, version)
        (answer,) = ask(own_lab.client, Question(address, spec.node_port, "udp"))
        assert answer["pod"] == server.name
        flow = wait_for_flow(node, "--service", spec.name)
        assert (flow["event"], flow["ended"], flow["path"]) == ("end", "timed_out", "tc")
        assert flow["frontend"] == {"address": address, "port": spec.node_port, "type": "NodePort"}
        assert flow["client"]["address"] == address_of(own_lab.client, version)
        assert flow["backend"]["pod"] == f"default/{server.name}"
        assert (flow["bytes"]["original"], flow["packets"]) == (4, {"original": 1, "reply": 1})


def test_clients_can_be_filtered_by_their_pods(cluster, lab):
    spec = cluster.serve(cluster.new("ClusterIP"), lab.pods[:1])
    (address, *_) = cluster.cluster_ips(spec)
    for pod in ("pod-1-1", "pod-1-2"):
        connect(lab.pod(pod), address, PORT)
    node = lab.node("node1")
    wait_until(lambda: len(flows(node, "--to", address)) > 1, "both")
    (flow,) = flows(node, "--to", address, "--from", "pod-1-2")
    assert flow["client"]["address"] == lab.pod("pod-1-2").ipv4


@contextmanager
def following(node: LabNode, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """`ebpflb flows --follow` on a node."""
    command = [*PROGRAM, "flows", "--follow", "-o", "jsonl", *arguments]
    with node.popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_following_shows_a_connection_as_it_ends(cluster, lab):
    spec = cluster.serve(cluster.new("ClusterIP"), lab.pods[:1])
    (address, *_) = cluster.cluster_ips(spec)
    with following(lab.node("node1"), "--service", spec.name) as process:
        shown = process.stdout
        assert shown

        def is_shown() -> bool:
            connect(lab.pod("pod-1-1"), address, PORT)
            return bool(select.select([shown], [], [], 0.1)[0])

        wait_until(is_shown, "it has begun, and shows a connection")
        (last,) = ask(lab.pod("pod-1-1"), Question(address, PORT))
        ports = []
        while last["client_port"] not in ports:
            flow = json.loads(shown.readline())
            assert flow["frontend"]["address"] == address
            ports.append(flow["client"]["port"])


def test_names_that_nobody_has_are_one_line(cluster, lab):
    node = lab.node("node1")
    spec = cluster.serve(cluster.new("ClusterIP"), lab.pods[:1])
    line = error_line(ebpflb(node, "flows", "--service", f"{spec.name}0"))
    assert line.startswith(
        f"unknown Service 'default/{spec.name}0' (did you mean default/{spec.name}"
    )
    line = error_line(ebpflb(node, "flows", "--from", "pod-1-7"))
    assert line.startswith("unknown pod 'default/pod-1-7' (did you mean default/pod-1-")


def test_without_an_agent_it_says_what_to_do_and_a_killed_one_is_replaced(own_lab, tmp_path):
    (node, *_) = own_lab.nodes
    wanted = f"no agent answers at {node.query_socket}: start `ebpflb run`"
    assert error_line(ebpflb(node, "flows")).startswith(wanted)
    with started(own_lab, tmp_path, nodes=["node1"]) as cluster:
        agent = cluster.agents["node1"]
        agent.kill()
        assert node.query_socket.is_socket()
        assert error_line(ebpflb(node, "flows")).startswith(wanted)
        agent.start()
        agent.wait_in_sync()
        assert ebpflb(node, "flows").returncode == 0
        agent.stop()
        assert not node.query_socket.exists()


def test_what_happens_while_no_agent_runs_is_reported_by_the_next_one(own_lab, tmp_path):
    with started(own_lab, tmp_path, nodes=["node1"]) as cluster:
        agent, client = cluster.agents["node1"], own_lab.pod("pod-1-1")
        spec = cluster.serve(cluster.new("ClusterIP"), own_lab.pods_on("node2")[:1])
        (address, *_) = cluster.cluster_ips(spec)
        agent.stop()
        assert connect(client, address, PORT)
        agent.start()
        agent.wait_in_sync()
        flow = wait_for_flow(agent.node, "--service", spec.name)
        assert (flow["seq"], flow["client"]["pod"]) == (0, f"default/{client.name}")
        assert flow["backend"]["node"] == "node2"


def test_flows_are_found_after_a_kill_also_of_a_service_that_is_gone(own_lab, tmp_path):
    with started(own_lab, tmp_path, nodes=["node1"]) as cluster:
        agent, node = cluster.agents["node1"], own_lab.node("node1")
        kept = node.query_socket.with_name("flows")
        spec = cluster.serve(cluster.new("ClusterIP"), own_lab.pods_on("node1"))
        assert connect(own_lab.pod("pod-1-1"), cluster.cluster_ips(spec)[0], PORT)
        flow = wait_for_flow(node, "--service", spec.name)
        wait_until(lambda: b'"ended"' in b"".join(map(unpacked, kept.glob("*.gz"))), "kept flows")
        agent.kill()
        cluster.clear()
        agent.start()
        agent.wait_in_sync()
        assert flows(node, "--since", "10m", "--service", spec.name)[-1] == flow
        line = error_line(ebpflb(node, "flows", "--service", spec.name))
        assert line.startswith(f"unknown Service 'default/{spec.name}'")


def unpacked(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes())


def test_a_full_ring_costs_records_which_are_counted_and_nothing_else(own_lab, tmp_path):
    """The agent stops reading for a while; before and afterwards every record is read."""
    rate = ("--flow-rate", "0", "--flow-events", "start,end", "--flow-history", "100000")
    with started(own_lab, tmp_path, rate, nodes=["node1"]) as cluster:
        node, client = own_lab.node("node1"), own_lab.pod("pod-1-1")
        spec = cluster.serve(cluster.new("ClusterIP"), own_lab.pods_on("node1"))
        (address, *_) = cluster.cluster_ips(spec)
        with suspended(cluster.agents["node1"]):
            result = client.load(address, PORT, count=MORE_THAN_A_RING, workers=8)
        assert result.failed == 0
        lost = total(pinned_maps(node)["lb_flow_lost"], FlowLost.LB_LOST_FULL)
        assert lost > 0
        wanted = 2 * MORE_THAN_A_RING - lost
        wait_until(lambda: len(flows(node, "--last", "100000")) == wanted, "all that fitted")
        assert connect(client, address, PORT)
        wait_until(lambda: len(flows(node, "--last", "100000")) == wanted + 2, "later ones")


@contextmanager
def suspended(agent: NodeAgent) -> Iterator[None]:
    """It does not run."""
    assert agent._process
    agent._process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        agent._process.send_signal(signal.SIGCONT)


def total(counters: BpfMap, index: int) -> int:
    """The sum over all CPUs."""
    value = counters.lookup(index.to_bytes(4, byteorder))
    return sum(memoryview(value or b"").cast("Q"))


def test_flows_are_exported_and_the_file_is_rotated(own_lab, tmp_path):
    target = tmp_path / "flows.jsonl"
    size = ("--flow-export-max-bytes", "5000", "--flow-export-files", "3")
    options = ("--flow-export", str(target), *size)
    with started(own_lab, tmp_path, options, nodes=["node1"]) as cluster:
        spec = cluster.serve(cluster.new("ClusterIP"), own_lab.pods_on("node1"))
        (address, *_) = cluster.cluster_ips(spec)
        ask(own_lab.pod("pod-1-1"), Question(address, PORT, times=40))
        files = [target, *(target.with_name(f"{target.name}.{n}") for n in (1, 2))]
        wait_until(lambda: all(file.exists() for file in files), "rotated files")
        assert not target.with_name(f"{target.name}.3").exists()
        lines = [line for file in files for line in file.read_text().splitlines()]
        assert all(json.loads(line)["service"]["name"] == spec.name for line in lines)
        assert all(file.stat().st_size <= 5000 for file in files)
