# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.doctor.pins import check_addresses
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import parse_address
from ebpflb.model.plan import FrontendType
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import by_service, frontend


@pytest.fixture
def found():
    """What is found on a node with these addresses of its own."""
    maps = memory_maps()
    sync = Sync(maps, quiesce=lambda: None)
    sync.resync(by_service(frontend(), frontend("192.0.2.9", type=FrontendType.LOAD_BALANCER)))

    def look(*texts):
        flags = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
        sync.set_node_addresses({parse_address(text): flags for text in texts})
        return [(str(each.severity), each.where) for each in check_addresses(maps)]

    return look


def test_a_node_with_addresses_of_its_own_is_well(found):
    assert found("192.0.2.1") == [("ok", "")]


def test_a_cluster_ip_on_the_node_is_a_warning(found):
    assert found("192.0.2.1", "10.96.0.1") == [("warning", "10.96.0.1")]


def test_an_external_address_on_the_node_is_a_note(found):
    assert found("192.0.2.9") == [("ok", ""), ("note", "192.0.2.9")]
