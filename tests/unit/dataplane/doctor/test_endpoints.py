# SPDX-License-Identifier: Apache-2.0
"""doctor's findings about unreachable endpoints."""

from ebpflb.dataplane.doctor.endpoints import check_endpoints
from ebpflb.dataplane.doctor.finding import Severity
from ebpflb.dataplane.explain.reach import Silent
from ebpflb.dataplane.kernel.rtnetlink import Route
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import format_address, parse_address
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import backends, by_service, frontend

VIP, OTHER_VIP, POD, LOST, BEHIND = "10.96.0.1", "10.96.0.2", "10.1.0.1", "10.9.0.1", "10.2.0.1"
GATEWAY = "192.0.2.2"
UPLINK = 999_999


def route(address):
    if format_address(address) == LOST:
        return None
    behind = format_address(address) == BEHIND
    return Route(UPLINK, is_local=False, gateway=parse_address(GATEWAY) if behind else None)


def checked(*endpoints):
    maps = memory_maps()
    sync = Sync(maps, quiesce=lambda: None)
    sync.load()
    served = [frontend(VIP, backends(*endpoints)), frontend(OTHER_VIP, backends(POD))]
    assert not sync.resync(by_service(*served))
    return check_endpoints(maps, route, Silent({(UPLINK, parse_address(GATEWAY))}))


def test_endpoints_with_a_way_are_fine():
    (found,) = checked(POD)
    assert found.severity is Severity.OK


def test_each_trouble_is_reported_with_its_endpoints():
    found = checked(POD, LOST, BEHIND, OTHER_VIP)
    assert {each.severity for each in found} == {Severity.WARNING}
    assert {each.where: each.what for each in found} == {
        LOST: "no route leads there",
        BEHIND: f"the next hop {GATEWAY} on device {UPLINK} does not answer",
        OTHER_VIP: "a Service's own address is an endpoint",
    }
