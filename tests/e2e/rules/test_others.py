# SPDX-License-Identifier: Apache-2.0
"""Foreign programs, devices and rules on a node are not touched, and ebpflb's own are restored."""

import json
import socket
from contextlib import closing

import pytest

from tests.e2e.harness.cluster import address_of, started
from tests.e2e.harness.command import status
from tests.e2e.harness.questions import PROTOCOLS, answers, differing, everywhere
from tests.e2e.harness.sockets import connected, opened
from tests.e2e.harness.waiting import wait_until

PORT = 8080
SERVER_PORT = 5001
DEVICES = ("eth0", "veth-1-1")
ADDRESS = ("192.0.2.9/32", "dev", "eth0")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pods_see_each_other_as_they_are(cluster, lab, protocol):
    cluster.serve(cluster.new(), lab.pods)
    for version in cluster.versions:
        for source in (lab.pod("pod-1-1"), lab.node("node2")):
            for target in (lab.pod("pod-1-2"), lab.pod("pod-2-1")):
                found = answers(source, address_of(target, version), PORT, protocol, 5)
                seen = {(each["pod"], each["client_address"]) for each in found}
                if source.name == "node2" and target.node == "node2":
                    assert {pod for pod, _ in seen} == {target.name}
                else:
                    assert seen == {(target.name, address_of(source, version))}


def test_no_socket_is_open_on_a_node_port(cluster, lab):
    spec = cluster.serve(cluster.new("LoadBalancer"), lab.pods)
    for node in lab.nodes:
        listening = node.exec(["ss", "-Hlntu"]).stdout
        assert listening
        assert f":{spec.node_port} " not in listening


def test_no_address_of_a_service_is_one_of_the_node(cluster, lab):
    spec = cluster.serve(cluster.new("LoadBalancer"), lab.pods)
    external = {lab.ingress_ip(spec.number, version) for version in cluster.versions}
    for node in lab.nodes:
        devices = json.loads(node.exec(["ip", "-json", "addr"]).stdout)
        own = {found["local"] for device in devices for found in device["addr_info"]}
        assert set(node.addresses) <= own
        assert not own & {*external, *cluster.cluster_ips(spec)}


@pytest.mark.parametrize("version", [4, 6])
def test_a_connection_from_a_port_that_is_a_node_port_gets_its_replies(cluster, lab, version):
    spec = cluster.serve(cluster.new(), lab.pods)
    node = lab.node("node1")
    outside = address_of(lab.client, version)
    with opened(lab.client, version) as server, opened(node, version) as asking:
        server.bind(("", SERVER_PORT + version))
        server.listen()
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        asking.bind(("", spec.node_port))
        asking.connect((outside, SERVER_PORT + version))
        answering, peer = server.accept()
        with closing(answering):
            assert peer[:2] == (address_of(node, version), spec.node_port)
            for text in (b"one", b"two"):
                asking.sendall(text)
                assert answering.recv(10) == text
                answering.sendall(text)
                assert asking.recv(10) == text
    with opened(lab.client, version, "udp") as server, opened(node, version, "udp") as asking:
        server.bind(("", SERVER_PORT + version))
        asking.bind(("", spec.node_port))
        asking.connect((outside, SERVER_PORT + version))
        for text in (b"one", b"two"):
            asking.send(text)
            received, peer = server.recvfrom(10)
            server.sendto(received, peer)
            assert asking.recv(10) == text


def test_removed_programs_are_attached_again(own_lab, tmp_path):
    node = own_lab.node("node1")
    with started(own_lab, tmp_path, ["--attach=clsact"], ["node1"]) as cluster:
        spec = cluster.serve(cluster.new(), own_lab.pods)

        def places() -> list[str]:
            hooks = status(node)["loaded"]["hooks"]
            return sorted(each["place"] for each in hooks if each["place"] in DEVICES)

        whole = places()
        for device in DEVICES:
            node.exec(["tc", "qdisc", "del", "dev", device, "clsact"])
        # Another address makes the agent check before the minute is over.
        node.exec(["ip", "addr", "add", *ADDRESS])
        try:
            wait_until(lambda: places() == whole, "the programs are attached again")
            with connected(own_lab.client, address_of(node, 4), spec.node_port):
                pass
            assert differing(everywhere(cluster, spec), own_lab.pods) == {}
        finally:
            node.exec(["ip", "addr", "del", *ADDRESS])
