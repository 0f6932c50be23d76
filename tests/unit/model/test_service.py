# SPDX-License-Identifier: Apache-2.0
"""Names of Services and their ports, and what policy requires of a port."""

import pytest

from ebpflb.model.address import Protocol
from ebpflb.model.service import ServiceName, TrafficPolicy
from tests.builders import address, port_name, service_port

LOCAL = TrafficPolicy.LOCAL


def test_names_read_as_in_kubernetes():
    assert str(ServiceName("default", "web")) == "default/web"
    assert str(port_name("dns", Protocol.UDP)) == "default/web:dns/UDP"
    assert str(port_name()) == "default/web:/TCP"


def test_a_cluster_ip_alone_is_not_external():
    port = service_port()
    assert (port.node_port, port.affinity_timeout, port.health_check_node_port) == (0, 0, 0)
    assert not port.externally_accessible
    assert port.uses_cluster_endpoints
    assert not port.uses_local_endpoints


@pytest.mark.parametrize(
    "fields",
    [
        {"node_port": 30080},
        {"external_ips": (address("203.0.113.1"),)},
        {"load_balancer_ips": (address("203.0.113.1"),)},
    ],
)
def test_any_external_frontend_needs_the_endpoints_of_the_cluster(fields):
    port = service_port(internal_policy=LOCAL, external_policy=LOCAL, **fields)
    assert port.externally_accessible
    assert port.uses_cluster_endpoints


def test_internal_policy_local_needs_the_local_endpoints_alone():
    port = service_port(internal_policy=LOCAL)
    assert port.uses_local_endpoints
    assert not port.uses_cluster_endpoints


def test_external_policy_local_counts_with_an_external_frontend_only():
    assert not service_port(external_policy=LOCAL).uses_local_endpoints
    assert service_port(external_policy=LOCAL, node_port=30080).uses_local_endpoints
