# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.doctor.addresses import OwnAddress, check_addresses
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import parse_address
from ebpflb.model.plan import FrontendType
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import by_service, frontend

NOWHERE = OwnAddress("lo")


@pytest.fixture
def found():
    """What is found on a node with these addresses of its own."""
    maps = memory_maps()
    sync = Sync(maps, quiesce=lambda: None)
    sync.resync(by_service(frontend(), frontend("192.0.2.9", type=FrontendType.LOAD_BALANCER)))

    def look(*texts, own=NOWHERE):
        flags = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
        addresses = [parse_address(text) for text in texts]
        sync.set_node_addresses(dict.fromkeys(addresses, flags))
        return check_addresses(maps, dict.fromkeys(addresses, own))

    return look


def seen(findings):
    return [(str(each.severity), each.where) for each in findings]


def test_a_node_with_addresses_of_its_own_is_well(found):
    assert seen(found("192.0.2.1")) == [("ok", "")]


def test_a_cluster_ip_that_kube_proxy_left_is_a_warning(found):
    (warning,) = found("192.0.2.1", "10.96.0.1", own=OwnAddress("kube-ipvs0"))
    assert seen([warning]) == [("warning", "10.96.0.1")]
    assert "ip link delete kube-ipvs0" in warning.advice


def test_a_cluster_ip_where_a_process_listens_is_a_note_without_advice(found):
    _, note = found("10.96.0.1", own=OwnAddress("nodelocaldns", ("53/TCP", "53/UDP")))
    assert seen([note]) == [("note", "10.96.0.1")]
    assert "nodelocaldns, where processes listen on 53/TCP, 53/UDP" in note.what
    assert not note.advice


def test_a_cluster_ip_where_nobody_listens_is_a_note(found):
    _, note = found("10.96.0.1")
    assert seen([note]) == [("note", "10.96.0.1")]
    assert "the Service serves its ports" in note.what


def test_an_external_address_on_the_node_is_a_note(found):
    assert seen(found("192.0.2.9")) == [("ok", ""), ("note", "192.0.2.9")]
