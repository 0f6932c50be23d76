# SPDX-License-Identifier: Apache-2.0
"""Which external and load-balancer IPs a Service gets, and the reasons for refused ones."""

from dataclasses import replace
from typing import Any

import pytest

from ebpflb.model.address import Protocol, SocketAddress, format_address
from ebpflb.model.admission.addresses import AddressRules, RefusalReason
from ebpflb.model.changes import Changes
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import API_SERVER, Service, ServiceCidr, ServiceName
from tests.builders import (
    NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    port_name,
    service,
    service_port,
)

WEB, THIEF = ServiceName("default", "web"), ServiceName("default", "thief")
CIDRS = ServiceCidr("kubernetes", ("10.96.0.0/16", "fd00:96::/112"))
# A free address of each family.
FREE, FREE6 = "192.0.2.10", "2001:db8::10"
NODE_IP, NODE_IP6 = "192.168.0.1", "fd00:168::1"
HERE = replace(node(addresses=(NODE_IP, NODE_IP6)), pod_ranges=("10.1.0.0/24", "fd00:1::/64"))
SERVERS = endpoint_slice("kubernetes", endpoint("192.168.0.9"), service="kubernetes")


def told(*items: ApiObject, **rules: Any) -> Changes:
    """Changes that know this node, and these objects."""
    changes = Changes(NODE, rules=AddressRules(**rules))
    for item in (HERE, *items):
        changes.set(item)
    changes.take()
    return changes


def asking(*ips: str, name: str = "thief", created: str = "", **fields: Any) -> Service:
    """A Service with these external IPs."""
    found = tuple(map(address, ips))
    return service(name, service_port(external_ips=found, **fields), created=created)


def balanced(*ips: str, port: int = 80) -> Service:
    """A Service with these load-balancer IPs."""
    return service("thief", service_port(load_balancer_ips=tuple(map(address, ips)), port=port))


def served(changes: Changes, name: ServiceName = THIEF) -> set[str]:
    """The addresses of its frontends, besides ClusterIP and NodePort."""
    kinds = (FrontendType.EXTERNAL_IP, FrontendType.LOAD_BALANCER)
    return {format_address(each.key.address) for each in changes.plan(name) if each.type in kinds}


def reasons(changes: Changes) -> dict[str, int]:
    return {name: count for name, count in changes.admission.count_refused().items() if count}


@pytest.mark.parametrize("make", [asking, balanced])
@pytest.mark.parametrize(
    ("ip", "reason"),
    [
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("127.0.0.1", "loopback"),
        ("127.8.0.1", "loopback"),
        ("::1", "loopback"),
        ("169.254.169.254", "link_local"),
        ("fe80::1", "link_local"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("ff02::1", "multicast"),
        ("10.96.200.1", "service_cidr"),
        ("fd00:96::200", "service_cidr"),
        ("10.1.0.7", "pod_cidr"),
        ("fd00:1::7", "pod_cidr"),
    ],
)
def test_an_address_that_is_somebody_elses_is_refused(make: Any, ip: str, reason: str):
    changes = told(CIDRS, make(ip, FREE))
    assert served(changes) == {FREE}
    assert reasons(changes) == {reason: 1}
    ((who, event, text),) = changes.problems()
    assert (who, event) == (THIEF, "AddressRefused")
    assert text.startswith(f"{'externalIPs' if make is asking else 'loadBalancer.ingress'}: {ip} ")


@pytest.mark.parametrize("make", [asking, balanced])
@pytest.mark.parametrize("ip", [FREE, FREE6, NODE_IP, NODE_IP6, "10.95.255.255", "10.1.1.1"])
def test_every_other_address_is_served_as_by_kube_proxy(make: Any, ip: str):
    changes = told(CIDRS, make(ip))
    assert served(changes) == {ip}
    assert changes.problems() == ()


@pytest.mark.parametrize(
    ("rule", "gets", "reason"),
    [
        (("serve",), {FREE, FREE6, NODE_IP}, {}),
        (("not-nodes",), {FREE, FREE6}, {"node": 1}),
        (("ignore",), set(), {"ignored": 3}),
        (("192.0.2.0/24",), {FREE}, {"not_listed": 2}),
        (("192.0.2.0/24", "2001:db8::/64"), {FREE, FREE6}, {"not_listed": 1}),
    ],
)
def test_the_options_decide_about_each_kind_alone(rule: Any, gets: set[str], reason: Any):
    everything = {FREE, FREE6, NODE_IP}
    for make, option in ((asking, "external_ips"), (balanced, "load_balancer_ips")):
        changes = told(make(*everything), **{option: rule})
        assert served(changes) == gets
        assert reasons(changes) == reason
    assert served(told(balanced(*everything), external_ips=rule)) == everything
    assert served(told(asking(*everything), load_balancer_ips=rule)) == everything


def test_listing_a_service_cidr_does_not_open_it():
    changes = told(CIDRS, asking("10.96.0.7", FREE), external_ips=("10.96.0.0/12", "192.0.2.0/24"))
    assert served(changes) == {FREE}


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP])
@pytest.mark.parametrize("ip", [NODE_IP, NODE_IP6])
def test_the_ports_of_a_nodes_own_servers_stay_its_own(protocol: Protocol, ip: str):
    port = service_port(
        name=port_name(protocol=protocol),
        external_ips=(address(ip), address(FREE)),
        port=10250,
    )
    changes = told(service("thief", port), protected_ports={22, 10250})
    assert served(changes) == {FREE}
    assert reasons(changes) == {"node_server": 1}
    (problem,) = changes.problems()
    assert f"{ip} not served at port 10250: " in problem.text
    assert served(told(asking(ip, port=10251), protected_ports={22, 10250})) == {ip}


def test_a_node_port_keeps_a_protected_number():
    changes = told(service("web", service_port(node_port=10250)), protected_ports={10250})
    assert len(changes.plan(WEB)) == 2


def test_no_service_but_its_own_gets_the_address_and_port_of_an_api_server():
    configured = frozenset({SocketAddress(address("192.0.2.6"), 6443)})
    changes = told(SERVERS, asking("192.0.2.6", "192.168.0.9", port=6443), api_servers=configured)
    assert served(changes) == {"192.168.0.9"}
    changes.set(asking("192.0.2.6", "192.168.0.9", port=8080))
    changes.take()
    assert served(changes) == {"192.0.2.6"}
    assert reasons(changes) == {"api_server": 1}
    own = replace(asking("192.168.0.9", port=8080), name=API_SERVER)
    assert served(told(SERVERS, own), API_SERVER) == {"192.168.0.9"}


def test_a_nodes_address_does_not_give_the_node_port_of_another_service():
    owner = service("web", service_port(node_port=30080))
    thief = asking(NODE_IP, FREE, port=30080)
    changes = told(thief, owner)
    assert served(changes) == {FREE}
    assert reasons(changes) == {"node_port": 1}
    changes.remove(key_of(owner))
    assert THIEF in changes.take()
    assert served(changes) == {FREE, NODE_IP}
    changes.set(owner)
    assert THIEF in changes.take()
    assert served(changes) == {FREE}
    both = asking(NODE_IP, port=30081, node_port=30081)
    assert served(told(both, owner)) == {NODE_IP}


def test_who_comes_later_is_obeyed_too():
    """ServiceCIDRs, Nodes and API servers arrive after Services, change, and go."""
    ips = ("10.97.0.1", "10.2.0.1", "192.168.0.2", "192.168.0.9")
    changes = told(asking(*ips, port=8080), external_ips=("not-nodes",))
    assert served(changes) == set(ips)
    neighbour = replace(node("node-b", addresses=("192.168.0.2",)), pod_ranges=("10.2.0.0/24",))
    for item in (ServiceCidr("more", ("10.97.0.0/16",)), neighbour, SERVERS):
        changes.set(item)
    assert changes.take() == {THIEF}
    assert served(changes) == set()
    assert set(reasons(changes)) == {"service_cidr", "pod_cidr", "node", "api_server"}
    for key in (Kind.SERVICE_CIDR, "", "more"), (Kind.NODE, "", "node-b"), key_of(SERVERS):
        changes.remove(ObjectKey(*key))
    assert changes.take() == {THIEF}
    assert served(changes) == set(ips)
    assert changes.problems() == ()
    assert changes.take() == set()


def test_what_a_service_loses_goes_to_the_next_one():
    thief = asking(NODE_IP, port=30080, created="2024-01-01T00:00:00Z")
    web = asking(NODE_IP, name="web", port=30080, created="2025-01-01T00:00:00Z")
    changes = told(thief, web)
    assert (served(changes), served(changes, WEB)) == ({NODE_IP}, set())
    (port,) = web.ports
    changes.set(replace(web, ports=(replace(port, node_port=30080),)))
    assert changes.take() == {WEB, THIEF}
    assert (served(changes), served(changes, WEB)) == (set(), {NODE_IP})


def test_a_service_that_is_gone_or_asks_no_more_gets_nothing():
    changes = told(CIDRS, asking("10.96.0.7"))
    changes.set(service("thief"))
    changes.take()
    assert changes.problems() == ()
    changes.set(asking("10.96.0.7"))
    changes.set(ServiceCidr("more", ("10.97.0.0/16",)))
    changes.remove(key_of(asking()))
    changes.take()
    assert (changes.problems(), reasons(changes)) == ((), {})


def test_a_service_that_is_gone_is_not_decided_about_again():
    owner = service("web", service_port(node_port=30080))
    changes = told(owner, thief := asking(NODE_IP, port=30080))
    changes.remove(key_of(owner))
    changes.remove(key_of(thief))
    assert changes.take() == {WEB, THIEF}
    assert changes.problems() == ()


def test_very_many_addresses_are_one_line():
    ips = [f"10.96.{high}.{low}" for high in range(1, 17) for low in range(256)][:4095]
    changes = told(CIDRS, asking(*ips))
    assert served(changes) == set()
    (problem,) = changes.problems()
    assert problem.text == (
        "externalIPs: 10.96.1.0, 10.96.1.1, 10.96.1.2 and 4092 more not served: "
        "in a ServiceCIDR, which is for ClusterIPs"
    )
    assert reasons(changes) == {"service_cidr": 4095}


@pytest.mark.parametrize("reason", RefusalReason)
def test_every_reason_has_its_count(reason: RefusalReason):
    assert told().admission.count_refused()[reason.value] == 0
