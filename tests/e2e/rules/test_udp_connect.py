# SPDX-License-Identifier: Apache-2.0
"""connect() of a UDP socket to a Service succeeds although nothing will reply there.

getaddrinfo() connects a UDP socket to each address of a name, to sort them, and assumes that an
address has no route if that fails: glibc to the requested port, Go to port 9, musl to 65535. The
refusal comes with the first datagram.
"""

import socket

import pytest

from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.sockets import opened

PORT = 80
PROBED = (0, 9, 53, 65535)
MEMBERS = pytest.mark.parametrize("source", ["node1", "pod-1-1"])
VERSIONS = pytest.mark.parametrize("version", [4, 6])


def is_refused_later(udp: socket.socket) -> bool:
    """Whether the first call after send() reports a refusal."""
    udp.send(b"\n")
    try:
        udp.recv(100)
    except ConnectionRefusedError:
        return True
    return False


@VERSIONS
@MEMBERS
def test_a_port_that_the_service_does_not_have_is_no_reason_to_refuse(
    cluster, lab, source, version
):
    spec = cluster.serve(cluster.new(), lab.pods)
    member, address = lab.member(source), lab.cluster_ip(spec.number, version)
    for port in PROBED:
        with opened(member, version, "udp") as udp:
            udp.connect((address, port))
            assert udp.getsockname()[0] == address_of(member, version), port
            if port:
                assert is_refused_later(udp), port


@VERSIONS
@MEMBERS
def test_a_service_without_endpoints_refuses_the_first_datagram(cluster, lab, source, version):
    spec = cluster.serve(cluster.new(), [])
    with opened(lab.member(source), version, "udp") as udp:
        udp.connect((lab.cluster_ip(spec.number, version), PORT))
        assert is_refused_later(udp)


@VERSIONS
def test_a_socket_that_was_refused_is_served_when_an_endpoint_comes(cluster, lab, version):
    spec = cluster.serve(cluster.new(), [])
    with opened(lab.node("node1"), version, "udp") as udp:
        udp.connect((lab.cluster_ip(spec.number, version), PORT))
        assert is_refused_later(udp)
        cluster.serve(spec, [lab.pod("pod-2-1")])
        udp.send(b"\n")
        assert udp.recv(100) == b"pod-2-1"
