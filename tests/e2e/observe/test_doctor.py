# SPDX-License-Identifier: Apache-2.0
"""doctor reports nothing on a healthy node, and names each fault in the line about it."""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ebpflb.dataplane.attach.links import TcDirection
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.uapi import AttachFlag, AttachType, ProgType
from ebpflb.lab import LabNode
from tests.bpf.attach.tiny import ALLOW, NEXT, load
from tests.bpf.harness.programs import prog_attach, prog_detach
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.command import PROGRAM, ebpflb, error_line
from tests.e2e.harness.sockets import listening
from tests.e2e.harness.waiting import wait_until, wait_until_equal
from tests.e2e.steps.troubles import findings, troubles

NOTE = ("note", "devices")

KUBE_PROXY = "*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\nCOMMIT\n"


PORTMAP = """*nat
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
:CNI-DN-0123456789abcdef01234 - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -j CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-SETMARK -j MARK --set-xmark 0x2000/0x2000
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-A CNI-HOSTPORT-DNAT -p tcp -m multiport --dports 8080 -j CNI-DN-0123456789abcdef01234
-A CNI-DN-0123456789abcdef01234 -s 127.0.0.1 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
-A CNI-DN-0123456789abcdef01234 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.1.0.5:80
COMMIT
"""


@pytest.fixture(scope="module")
def served(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    """An agent on both nodes."""
    with started(own_lab, tmp_path_factory.mktemp("doctor")) as cluster:
        yield cluster


@pytest.fixture
def node(served) -> Iterator[LabNode]:
    """The first node, which must be healthy again after each test."""
    first = served.lab.node("node1")
    yield first
    wait_until_equal(partial(troubles, first), [])


def notes(node: LabNode, check: str) -> list[str]:
    """The remarks of a check that are no problems."""
    return [
        f"{each['where']}: {each['what']}"
        for each in findings(node)
        if each["severity"] == "note" and each["check"] == check
    ]


def only_trouble(node: LabNode, severity: str, check: str) -> str:
    """The text of the only problem reported."""
    (found,) = troubles(node)
    assert found[:2] == (severity, check), found
    return found[2]


@contextmanager
def at_tcx(node: LabNode, device: str, direction: TcDirection, flag: AttachFlag) -> Iterator[None]:
    """Another product's tc program at a device of the node."""
    kind = {"ingress": AttachType.TCX_INGRESS, "egress": AttachType.TCX_EGRESS}[direction]
    program = load(NEXT, name="cil_from_netdev")
    with node.entered():
        link = libbpf.link_create(program.fd, socket.if_nametoindex(device), kind, flag)
    try:
        yield
    finally:
        libbpf.link_detach(link)
        os.close(link)
        program.close()


def test_a_healthy_node_has_notes_at_most(node):
    found = findings(node)
    assert {each["check"] for each in found if each["severity"] == "ok"} >= {
        *("agent", "kernel", "pins", "sockets", "devices", "coverage"),
        *("maps", "addresses", "sysctls", "kube-proxy"),
    }
    notes = {each["check"] for each in found if each["severity"] == "note"}
    assert notes <= {"clock", "devices", "kube-proxy"}


def test_a_healthy_node_takes_one_line_for_each_check(node):
    done = ebpflb(node, "doctor")
    assert done.stdout.endswith("\n\n0 errors, 0 warnings\n")
    assert "ok       devices     3 devices have our programs in both directions\n" in done.stdout


def test_a_device_without_our_program_is_found(own_lab, served, node):
    agent = served.agents["node1"]
    # The agent checks every minute, and would attach the program again.
    agent.stop()
    pin = next(iter(sorted(node.bpffs.glob("links/tcx_ingress_*"))))
    fd = libbpf.obj_get(pin)
    device = attached_to(node, pin.name)
    libbpf.link_detach(fd)
    os.close(fd)
    try:
        found = troubles(node)
    finally:
        agent.start()
        agent.wait_in_sync()
    assert ("error", "devices", f"{device}: no program of ours at ingress") in found


def attached_to(node: LabNode, pin: str) -> str:
    """The device of a pinned link."""
    with node.entered():
        return socket.if_indextoname(int(pin.rpartition("_")[2]))


@pytest.mark.parametrize(
    ("direction", "flag", "way"),
    [
        (TcDirection.INGRESS, AttachFlag.BEFORE, "before"),
        (TcDirection.EGRESS, AttachFlag.AFTER, "after"),
    ],
)
def test_a_program_of_others_on_the_wrong_side_is_found(node, direction, flag, way):
    with at_tcx(node, "eth0", direction, flag):
        text = only_trouble(node, "warning", "devices")
    assert text == f"eth0: cil_from_netdev of Cilium runs {way} ours at {direction}"


def test_a_program_of_others_on_the_right_side_is_a_note(node):
    with at_tcx(node, "eth0", TcDirection.INGRESS, AttachFlag.AFTER):
        assert troubles(node) == []
        notes = [e["what"] for e in findings(node) if (e["severity"], e["check"]) == NOTE]
    assert "cil_from_netdev of Cilium runs after ours at ingress" in notes
    assert "host device: the default route" in notes


def test_socket_balancing_of_others_is_found(node):
    kind = AttachType.CGROUP_INET4_CONNECT
    program = load(ALLOW, ProgType.CGROUP_SOCK_ADDR, kind, "cil_sock4_conne")
    cgroup = os.open(node.cgroup, os.O_RDONLY)
    prog_attach(program.fd, cgroup, kind, AttachFlag.ALLOW_MULTI)
    try:
        text = only_trouble(node, "warning", "sockets")
        assert text.endswith("cil_sock4_conne of Cilium runs after ours at connect4")
    finally:
        prog_detach(program.fd, cgroup, kind)
        os.close(cgroup)
        program.close()


def test_a_node_that_does_not_forward_is_found(node):
    names = ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding")
    for name in names:
        node.exec(["sysctl", "-w", f"{name}=0"])
    try:
        found = troubles(node)
    finally:
        for name in names:
            node.exec(["sysctl", "-w", f"{name}=1"])
    assert [each[:2] for each in found] == [("error", "sysctls")] * 2
    assert {each[2].partition(": ")[0] for each in found} == set(names)


def test_a_process_outside_the_cgroup_is_found(node):
    command = ["nsenter", f"--net={node.namespace}", "sleep", "infinity"]
    with subprocess.Popen(command) as outside:
        try:
            program = Path(f"/proc/{outside.pid}/comm")
            wait_until(lambda: program.read_text() == "sleep\n", "it is inside")
            text = only_trouble(node, "warning", "coverage")
        finally:
            outside.kill()
    assert f"1 process is outside cgroup {node.cgroup}: sleep ({outside.pid})" in text


def test_what_kube_proxy_has_left_is_found(node):
    node.exec(["iptables-nft-restore", "--noflush"], input=KUBE_PROXY)
    try:
        text = only_trouble(node, "warning", "kube-proxy")
    finally:
        node.exec(["nft", "flush", "ruleset"])
    assert "table nat: 1 chains, 1 jumps to them: is left over from kube-proxy" in text


@pytest.mark.parametrize(
    ("rules", "accepting"),
    [
        ("*filter\n:FORWARD DROP [0:0]\n{}\nCOMMIT\n", "-A FORWARD -o veth+ -j ACCEPT"),
        (
            "add table ip lb\n"
            "add chain ip lb f {{ type filter hook forward priority 0; policy drop; }}\n{}\n",
            "add rule ip lb f oifname veth* ct state new accept",
        ),
    ],
)
def test_a_policy_that_drops_what_is_forwarded_is_found(node, rules, accepting):
    write = ["nft", "-f", "-"] if rules.startswith("add") else ["iptables-nft-restore"]
    try:
        node.exec(write, input=rules.format(""))
        text = only_trouble(node, "warning", "forward")
        node.exec(write, input=rules.format(accepting))
        assert troubles(node) == []
    finally:
        node.exec(["nft", "flush", "ruleset"])
    assert "no rule accepts new connections from eth0 to pods" in text


def test_rules_of_portmap_are_no_trouble(node):
    """Nor is the sysctl that portmap sets for hostPorts on 127.0.0.1."""
    sysctl = "net.ipv4.conf.veth-1-1.route_localnet"
    node.exec(["iptables-nft-restore", "--noflush"], input=PORTMAP)
    node.exec(["sysctl", "-w", f"{sysctl}=1"])
    try:
        assert troubles(node) == []
    finally:
        node.exec(["nft", "flush", "ruleset"])
        node.exec(["sysctl", "-w", f"{sysctl}=0"])


def test_a_cluster_ip_that_kube_proxy_left_on_its_device_is_found(served, node):
    spec = served.serve(served.new())
    (address, *_) = served.cluster_ips(spec)
    node.exec(["ip", "tuntap", "add", "kube-ipvs0", "mode", "tun"])
    try:
        node.exec(["ip", "address", "add", f"{address}/32", "dev", "kube-ipvs0"])
        found = troubles(node)
    finally:
        node.exec(["ip", "link", "del", "kube-ipvs0"])
        served.remove(spec)
    what = f"{address}: is a ClusterIP and an address of kube-ipvs0"
    assert ("warning", "addresses", what) in found


def test_a_cluster_ip_where_a_process_of_the_node_listens_is_no_trouble(served, node):
    spec = served.serve(served.new())
    (address, *_) = served.cluster_ips(spec)
    node.exec(["ip", "address", "add", f"{address}/32", "dev", "lo"])
    try:
        with listening(node, [address], 53):
            wait_until(lambda: notes(node, "addresses"), "the agent knows the address")
            (note,) = notes(node, "addresses")
        assert troubles(node) == []
    finally:
        node.exec(["ip", "address", "del", f"{address}/32", "dev", "lo"])
        served.remove(spec)
    what = "is a ClusterIP and an address of lo, where processes listen on 53/TCP, 53/UDP"
    assert note == f"{address}: {what}"


def test_without_an_agent_the_rest_is_looked_at(served, node):
    served.agents["node1"].kill()
    try:
        text = only_trouble(node, "warning", "agent")
    finally:
        served.agents["node1"].start()
        served.agents["node1"].wait_in_sync()
    assert re.search(r"agent down, serving the state of [0-9]{2}:[0-9]{2}\b", text)


def test_pins_of_a_newer_version_are_one_line(node):
    newer = node.bpffs / "9-99"
    (newer / "complete").mkdir(parents=True)
    try:
        assert "made by a version with map layout 9" in only_trouble(node, "error", "pins")
    finally:
        (newer / "complete").rmdir()
        newer.rmdir()


def test_without_root_it_says_what_is_needed(node):
    command = ["setpriv", "--reuid", "65534", *PROGRAM, "doctor"]
    assert "needs root" in error_line(node.exec(command, check=False))
