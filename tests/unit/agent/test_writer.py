# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

from ebpflb.agent.writer import PlanTotals
from ebpflb.model.endpoint import PackedEndpoints
from ebpflb.model.node import Node
from ebpflb.model.plan import plan_service
from ebpflb.model.service import ServiceName, TrafficPolicy
from tests.builders import NODE, address, endpoint, endpoint_slice, service, service_port

WEB = ServiceName("default", "web")
ELSEWHERE = endpoint_slice("web-1", endpoint(node="node-z"))
HERE = endpoint_slice("web-1", endpoint(node=NODE))


def plan(piece, **fields):
    return plan_service(service("web", service_port(**fields)), [piece], Node(NODE))


def test_frontends_are_counted_and_replaced():
    totals = PlanTotals()
    totals.replace(WEB, plan(HERE, node_port=30000))
    totals.replace(ServiceName("default", "b"), plan(HERE))
    assert (totals.services, totals.frontends) == (2, 3)
    totals.replace(WEB, plan(HERE))
    assert (totals.services, totals.frontends) == (2, 2)
    totals.replace(WEB, ())
    assert (totals.services, totals.frontends) == (1, 1)


def test_a_port_with_several_external_frontends_counts_once_per_policy():
    totals = PlanTotals()
    vips = (address("192.0.2.1"), address("192.0.2.2"))
    local = {
        "internal_policy": TrafficPolicy.LOCAL,
        "external_policy": TrafficPolicy.LOCAL,
        "node_port": 30000,
        "external_ips": vips,
    }
    totals.replace(WEB, plan(ELSEWHERE, **local))
    assert +totals.no_local == {("internal", "IPv4"): 1, ("external", "IPv4"): 1}
    totals.replace(WEB, plan(HERE, **local))
    assert not +totals.no_local


def test_a_port_that_refuses_is_not_counted():
    totals = PlanTotals()
    nowhere = replace(ELSEWHERE, endpoints=PackedEndpoints())
    totals.replace(WEB, plan(nowhere, internal_policy=TrafficPolicy.LOCAL))
    assert not +totals.no_local
