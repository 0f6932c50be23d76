# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.model.address import Protocol
from ebpflb.model.changes import Changes
from ebpflb.model.plan import plan_service
from ebpflb.model.service import Service, ServicePort
from tests.builders import NODE, node, port_name, service, service_port


def port(protocol: Protocol) -> ServicePort:
    return service_port(name=port_name(protocol.name, protocol=protocol))


def retrying(*protocols: Protocol, retry: bool = True) -> Service:
    return service("web", *map(port, protocols), retry=retry)


@pytest.mark.parametrize("retry", [False, True])
def test_frontends_retry_what_has_a_handshake(retry: bool):
    planned = plan_service(retrying(*Protocol, retry=retry), (), node())
    # The same number under each protocol.
    found = {each.key.protocol: each.retry for each in planned}
    assert found == {each: retry and each is not Protocol.UDP for each in Protocol}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (retrying(Protocol.UDP), 1),
        (retrying(Protocol.UDP, retry=False), 0),
        (retrying(Protocol.UDP, Protocol.TCP), 0),
    ],
)
def test_a_service_of_udp_alone_is_told_that_it_has_no_effect(asked: Service, told: int):
    changes = Changes(NODE)
    changes.set(asked)
    assert sum("no handshake" in each.text for each in changes.problems()) == told
