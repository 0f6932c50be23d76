# SPDX-License-Identifier: Apache-2.0
"""Pods that the socket LB skips: those with a redirecting sidecar, those that opt out, and network
namespaces nested in a pod.
"""

import json
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ebpflb.dataplane.layout.enums import NetnsFlag, SettingFlag
from ebpflb.dataplane.layout.structs import LbNetns, LbSettings
from ebpflb.lab import Lab, Member
from ebpflb.lab.processes import remove_cgroup
from tests.e2e.harness.cluster import Cluster, started
from tests.e2e.harness.in_force import pinned_maps, watched
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.outside_cgroup import peers

VERSIONS = pytest.mark.parametrize("version", [4, 6])
PORT = 80
PROXY = 15001
# SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST: a sockaddr of the family.
ORIGINAL = {4: (socket.SOL_IP, "!2xH4s8x", 16), 6: (socket.IPPROTO_IPV6, "!2xH4x16s4x", 28)}
RULES = {
    "nft": """
        nft add table inet sidecar
        nft 'add chain inet sidecar output { type nat hook output priority -100; }'
        nft add rule inet sidecar output tcp dport 80 redirect to :15001
    """,
    "iptables-legacy": """
        iptables-legacy -t nat -A OUTPUT -p tcp --dport 80 -j REDIRECT --to-ports 15001
        ip6tables-legacy -t nat -A OUTPUT -p tcp --dport 80 -j REDIRECT --to-ports 15001
    """,
}
NO_RULES = """
    nft delete table inet sidecar 2>/dev/null
    iptables-legacy -t nat -F OUTPUT; ip6tables-legacy -t nat -F OUTPUT
"""


@pytest.fixture(scope="module")
def cluster(own_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Agents that have just started inspect pods every second."""
    with started(own_lab, tmp_path_factory.mktemp("tc-only")) as cluster:
        yield cluster


def is_left_alone(cluster: Cluster, count: int = 1) -> bool:
    """Whether the socket LB of the first node skips this many pods."""
    maps = pinned_maps(cluster.lab.node("node1"))
    flags = [LbNetns.from_buffer_copy(value).flags for _, value in maps["lb_netns"].items()]
    return sum(bool(each & NetnsFlag.LB_NETNS_TC_ONLY) for each in flags) == count


@contextmanager
def proxy(pod: Member, version: int) -> Iterator[socket.socket]:
    """Listens where the pod's rules redirect its connections."""
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    with pod.entered():
        listener = socket.create_server(("", PROXY), family=family)
    with closing(listener):
        listener.settimeout(20)
        yield listener


def original_destination(accepted: socket.socket, version: int) -> tuple[str, int]:
    level, layout, size = ORIGINAL[version]
    port, address = struct.unpack(layout, accepted.getsockopt(level, 80, size))
    return socket.inet_ntop(accepted.family, address), port


@pytest.fixture(params=RULES)
def sidecar(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Member]:
    """A pod that redirects its own traffic."""
    pod = cluster.lab.pod("pod-1-1")
    pod.exec(["sh", "-ec", RULES[request.param]])
    try:
        yield pod
    finally:
        pod.exec(["sh", "-c", NO_RULES])


@VERSIONS
def test_a_sidecar_sees_where_its_pod_wanted_to_go(cluster, sidecar, version):
    spec = cluster.serve(cluster.new(), [cluster.lab.pod("pod-2-1")])
    place = (cluster.lab.cluster_ip(spec.number, version), PORT)
    wait_until(lambda: is_left_alone(cluster), "the pod's sockets are left alone")
    with (
        proxy(sidecar, version) as listener,
        sidecar.entered(),
        socket.create_connection(place, 20),
        closing(listener.accept()[0]) as accepted,
    ):
        assert original_destination(accepted, version) == place


def pod_object(pod: Member, annotations: dict[str, str], **metadata: str) -> dict[str, object]:
    names = {"name": pod.name, "namespace": "default", "annotations": annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": names | metadata,
        "status": {"podIPs": [{"ip": address} for address in pod.addresses]},
    }


def namespace_object(annotations: dict[str, str]) -> dict[str, object]:
    metadata = {"name": "default", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


OUT, IN = {"ebpflb.io/socket-lb": "false"}, {"ebpflb.io/socket-lb": "true"}


def test_a_pod_and_a_namespace_may_opt_out(cluster):
    lab = cluster.lab
    first, second = lab.pod("pod-1-1"), lab.pod("pod-1-2")
    spec = cluster.serve(cluster.new(), [lab.pod("pod-2-1")])
    ways = [(lab.cluster_ip(spec.number, version), PORT) for version in (4, 6)]
    objects = [pod_object(first, {}), pod_object(second, IN)]
    lab.write_manifests([namespace_object(OUT), *objects], "opted-out.yaml")
    try:
        wait_until(lambda: is_left_alone(cluster), "one pod has opted out with its namespace")
        for place in ways:
            with connected(first, *place, "tcp") as held:
                assert exchange(held) == "pod-2-1"
                assert place[0] in peers(first)
            with connected(second, *place, "tcp") as held:
                assert exchange(held) == "pod-2-1"
                assert place[0] not in peers(second)

        lab.write_manifests([pod_object(first, {}), pod_object(second, OUT)], "opted-out.yaml")
        wait_until(lambda: is_left_alone(cluster, 1), "the other one has opted out by itself")
        with connected(second, *ways[0], "tcp") as held:
            assert exchange(held) == "pod-2-1"
            assert ways[0][0] in peers(second)
    finally:
        lab.remove_manifests("opted-out.yaml")
    wait_until(lambda: is_left_alone(cluster, 0), "nobody has opted out")


@pytest.mark.parametrize("sidecar", ["nft"], indirect=True)
def test_it_stays_so_while_an_agent_starts(cluster, sidecar):
    agent = cluster.agents["node1"]
    wait_until(lambda: is_left_alone(cluster), "the pod's sockets are left alone")
    with watched(agent.node, ["lb_settings"]) as seen:
        assert agent.stop() == 0
        agent.start()
        agent.wait_in_sync()
    settings = [LbSettings.from_buffer_copy(value) for ((_, value),) in seen["lb_settings"]]
    assert all(each.flags & SettingFlag.LB_SETTING_TC_ONLY_PODS for each in settings)


UID = "5a0c1b2d-0001-4002-8003-00000000000a"
# In a nested namespace the process itself has the address, and replies.
_NESTED = """
import ctypes, json, socket, subprocess, sys, time
cgroup, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
open(cgroup + "/cgroup.procs", "w").write("0")
assert not ctypes.CDLL(None, use_errno=True).unshare(0x40000000)
family = socket.AF_INET6 if ":" in address else socket.AF_INET
own = ["ip", "addr", "add", address, "dev", "lo", *["nodad"] * (family == socket.AF_INET6)]
for command in (["ip", "link", "set", "lo", "up"], own):
    subprocess.run(command, check=True)
# The kernel adds the route to an address of IPv6 a little later.
routes = ["ip", f"-{4 if family == socket.AF_INET else 6}", "route", "show", "table", "local"]
deadline = time.monotonic() + 20
while f"local {address} " not in subprocess.check_output(routes, text=True):
    assert time.monotonic() < deadline, routes
    time.sleep(0.01)
def asked(kind, connects):
    with socket.socket(family, kind) as server, socket.socket(family, kind) as client:
        server.bind((address, port))
        server.settimeout(5)
        client.settimeout(5)
        if kind == socket.SOCK_STREAM:
            server.listen()
        try:
            if connects:
                client.connect((address, port))
            if kind == socket.SOCK_STREAM:
                server.accept()[0].close()
                return True
            client.send(b"x") if connects else client.sendto(b"x", (address, port))
            return server.recv(9) == b"x"
        except OSError:
            return False
udp = socket.SOCK_DGRAM
print(json.dumps([asked(socket.SOCK_STREAM, True), asked(udp, True), asked(udp, False)]))
"""


def answers_inside(pod: Member, cgroup: Path, address: str) -> list[bool]:
    """Whether a namespace nested in a pod reaches a local server with a Service's address, on each
    path.
    """
    arguments = [str(cgroup), address, str(PORT)]
    found = json.loads(pod.exec([sys.executable, "-I", "-c", _NESTED, *arguments]).stdout)
    return list(found)


@contextmanager
def pod_cgroup(pod: Member) -> Iterator[Path]:
    """A cgroup below the node's, as the kubelet creates them."""
    top = pod.cgroup.parent / "kubepods.slice"
    cgroup = top / f"kubepods-pod{UID.replace('-', '_')}.slice"
    (cgroup / "container").mkdir(parents=True)
    try:
        yield cgroup
    finally:
        remove_cgroup(top)


def test_a_namespace_inside_a_pod_has_its_own_addresses(cluster):
    lab = cluster.lab
    pod = lab.pod("pod-1-1")
    spec = cluster.serve(cluster.new(), [lab.pod("pod-2-1")])
    places = [lab.cluster_ip(spec.number, version) for version in (4, 6)]
    known = pinned_maps(lab.node("node1"))["lb_pod_cgroups"]
    with pod_cgroup(pod) as cgroup:
        inside = cgroup / "container"
        assert [answers_inside(pod, inside, each) for each in places] == [[False] * 3] * 2
        lab.write_manifests([pod_object(pod, {}, uid=UID)], "nested.yaml")
        try:
            wait_until(lambda: list(known.items()), "the pod's cgroup is known")
            assert [answers_inside(pod, inside, each) for each in places] == [[True] * 3] * 2
        finally:
            lab.remove_manifests("nested.yaml")
        wait_until(lambda: not list(known.items()), "the pod's cgroup is forgotten")
