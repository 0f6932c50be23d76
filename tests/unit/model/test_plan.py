# SPDX-License-Identifier: Apache-2.0
"""plan_service(): which frontends a Service gets, and the backends of each."""

from itertools import permutations
from typing import Any

import pytest

from ebpflb.model.address import Family, Protocol, format_address
from ebpflb.model.endpoint import Endpoint, SlicePort
from ebpflb.model.plan import (
    Backend,
    Choice,
    Defaults,
    Frontend,
    FrontendKey,
    FrontendType,
    IfEmpty,
    frontend_keys,
    plan_service,
)
from ebpflb.model.service import Dsr, Service, ServiceName, ServicePort, TrafficPolicy
from ebpflb.words.scheduler import Scheduler
from tests.builders import (
    OTHER_NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    port_name,
    service,
    service_port,
    terminating,
)

CLUSTER, LOCAL = TrafficPolicy.CLUSTER, TrafficPolicy.LOCAL
EXTERNAL: dict[str, Any] = {
    "node_port": 30080,
    "external_ips": (address("203.0.113.1"),),
    "load_balancer_ips": (address("203.0.113.2"),),
}

HERE = endpoint("10.1.0.1")
THERE = endpoint("10.1.0.2", OTHER_NODE)
UNREADY = endpoint("10.1.0.3", ready=False)


def plan(port: ServicePort, *endpoints: Endpoint) -> tuple[Frontend, ...]:
    return plan_service(service("web", port), [endpoint_slice("web-1", *endpoints)], node())


def shown(choice: Choice) -> str:
    """The last numbers of the backends, or what happens without any."""
    numbers = [format_address(each.address).rpartition(".")[2] for each in choice.backends]
    return " ".join(numbers) or choice.if_empty


def table(frontends: tuple[Frontend, ...]) -> dict[str, tuple[str, str]]:
    return {each.type.value: (shown(each.local), shown(each.others)) for each in frontends}


def keys(frontends: tuple[Frontend, ...]) -> list[str]:
    return [f"{each.type} {format_address(each.key.address)}:{each.key.port}" for each in frontends]


def test_each_field_makes_its_frontends():
    assert keys(plan(service_port(**EXTERNAL), HERE)) == [
        "ClusterIP 10.96.0.10:80",
        "NodePort 0.0.0.0:30080",
        "ExternalIP 203.0.113.1:80",
        "LoadBalancer 203.0.113.2:80",
    ]


def test_a_cluster_ip_alone_makes_one_frontend():
    assert keys(plan(service_port(), HERE)) == ["ClusterIP 10.96.0.10:80"]


def test_ipv6_has_a_wildcard_of_its_own():
    port = service_port("fd00::10", node_port=30080)
    assert keys(plan(port)) == ["ClusterIP fd00::10:80", "NodePort :::30080"]


def test_a_service_without_ports_has_no_frontends():
    nothing = Service(ServiceName("default", "web"))
    assert plan_service(nothing, [endpoint_slice("web-1", HERE)], node()) == ()


def test_protocols_are_different_frontends():
    ports = [
        service_port(name=port_name(protocol.name.lower(), protocol), port=53)
        for protocol in Protocol
    ]
    slice_ports = tuple(
        SlicePort(protocol.name.lower(), protocol, 5300 + protocol) for protocol in Protocol
    )
    frontends = plan_service(
        service("web", *ports), [endpoint_slice("web-1", HERE, ports=slice_ports)], node()
    )
    targets = {each.key.protocol: each.local.backends[0].port for each in frontends}
    assert targets == {protocol: 5300 + protocol for protocol in Protocol}


def test_a_frontend_says_what_its_service_port_says():
    port = service_port(internal_policy=LOCAL, affinity_timeout=120)
    assert plan(port, HERE, THERE) == (
        Frontend(
            key=FrontendKey(address("10.96.0.10"), 80, Protocol.TCP),
            type=FrontendType.CLUSTER_IP,
            service=port_name(),
            local=Choice(
                (Backend(address("10.1.0.1"), 8080, True, False),),
                IfEmpty.REFUSE,
            ),
            others=Choice(
                (Backend(address("10.1.0.1"), 8080, True, False),),
                IfEmpty.REFUSE,
            ),
            internal_policy=LOCAL,
            external_policy=CLUSTER,
            affinity_timeout=120,
        ),
    )


def test_backends_know_whether_they_are_local_and_whether_they_terminate():
    (frontend,) = plan(service_port(), terminating("10.1.0.1"), terminating("10.1.0.2", OTHER_NODE))
    assert frontend.local.backends == (
        Backend(address("10.1.0.1"), 8080, local=True, terminating=True),
        Backend(address("10.1.0.2"), 8080, local=False, terminating=True, node=OTHER_NODE),
    )


SERVED = {
    "policy Cluster: everybody uses the cluster": (
        (CLUSTER, CLUSTER),
        (HERE, THERE),
        ("1 2", "1 2"),
        ("1 2", "1 2"),
    ),
    "internal Local: only the ClusterIP stays on the node": (
        (LOCAL, CLUSTER),
        (HERE, THERE),
        ("1", "1"),
        ("1 2", "1 2"),
    ),
    "external Local: sources on the node use the cluster": (
        (CLUSTER, LOCAL),
        (HERE, THERE),
        ("1 2", "1 2"),
        ("1 2", "1"),
    ),
    "both Local": ((LOCAL, LOCAL), (HERE, THERE), ("1", "1"), ("1 2", "1")),
    "nobody has an endpoint: all refuse": (
        (CLUSTER, CLUSTER),
        (),
        ("refuse", "refuse"),
        ("refuse", "refuse"),
    ),
    "nobody has a usable endpoint: all refuse, whatever the policies": (
        (LOCAL, LOCAL),
        (UNREADY,),
        ("refuse", "refuse"),
        ("refuse", "refuse"),
    ),
    "internal Local without a local endpoint: the ClusterIP drops": (
        (LOCAL, CLUSTER),
        (THERE,),
        ("drop", "drop"),
        ("2", "2"),
    ),
    "external Local without a local endpoint: others are dropped, the node is served": (
        (CLUSTER, LOCAL),
        (THERE, UNREADY),
        ("2", "2"),
        ("2", "drop"),
    ),
}


@pytest.mark.parametrize(
    ("policies", "endpoints", "inside", "outside"),
    [pytest.param(*row, id=sentence) for sentence, row in SERVED.items()],
)
def test_who_is_sent_where(policies, endpoints, inside, outside):
    internal, external = policies
    port = service_port(internal_policy=internal, external_policy=external, **EXTERNAL)
    assert table(plan(port, *endpoints)) == {
        "ClusterIP": inside,
        "NodePort": outside,
        "ExternalIP": outside,
        "LoadBalancer": outside,
    }


def test_internal_local_without_external_frontends_drops_too():
    assert table(plan(service_port(internal_policy=LOCAL), THERE)) == {"ClusterIP": ("drop",) * 2}


def test_what_is_not_empty_says_refuse():
    port = service_port(external_policy=LOCAL, **EXTERNAL)
    frontends = plan(port, HERE, THERE)
    assert {each.others.if_empty for each in frontends} == {IfEmpty.REFUSE}


def test_a_family_has_its_own_endpoints():
    dual = service("web", service_port(), service_port("fd00::10"))
    slices = [
        endpoint_slice("web-1", HERE),
        endpoint_slice("web-2", endpoint("fd01::1"), family=Family.IPV6),
    ]
    first, second = plan_service(dual, slices, node())
    assert [format_address(each.address) for each in first.local.backends] == ["10.1.0.1"]
    assert [format_address(each.address) for each in second.local.backends] == ["fd01::1"]


def test_the_order_of_slices_and_endpoints_does_not_matter():
    slices = [
        endpoint_slice("web-1", HERE, THERE),
        endpoint_slice("web-2", endpoint("10.1.0.9")),
        endpoint_slice("web-3", endpoint("10.1.0.9", OTHER_NODE, ready=False, terminating=True)),
        endpoint_slice("web-4", THERE, HERE, ports=(SlicePort("", Protocol.TCP, 9090),)),
    ]
    plans = {plan_service(service(), order, node()) for order in permutations(slices)}
    assert len(plans) == 1
    (frontend,) = plans.pop()
    assert list(frontend.local.backends) == sorted(frontend.local.backends)


def test_of_equal_endpoints_the_one_of_the_first_slice_name_stays():
    twins = [
        endpoint_slice("web-2", terminating("10.1.0.1", OTHER_NODE)),
        endpoint_slice("web-1", terminating("10.1.0.1")),
    ]
    (frontend,) = plan_service(service(), twins, node())
    assert [each.local for each in frontend.local.backends] == [True]


def test_slices_of_other_services_do_not_count():
    slices = [
        endpoint_slice("web-1", HERE),
        endpoint_slice("web-2", THERE, service="shop"),
        endpoint_slice("web-3", THERE, namespace="shop"),
    ]
    assert plan_service(service(), slices, node()) == plan(service_port(), HERE)


def test_an_address_given_twice_is_one_frontend_of_the_first_type():
    twice = address("203.0.113.1")
    port = service_port(external_ips=(twice,), load_balancer_ips=(twice, address("10.96.0.10")))
    assert keys(plan(port)) == ["ClusterIP 10.96.0.10:80", "ExternalIP 203.0.113.1:80"]


def test_frontend_keys_are_the_keys_of_the_plan():
    dual = service("web", service_port(**EXTERNAL), service_port("fd00::10", node_port=30080))
    planned = plan_service(dual, [], node())
    assert frontend_keys(dual) == {each.key for each in planned}
    assert len(planned) == 6


@pytest.mark.parametrize(
    ("external_policy", "masqueraded"),
    [
        (CLUSTER, {"ClusterIP", "NodePort", "ExternalIP", "LoadBalancer"}),
        (LOCAL, {"ClusterIP"}),
    ],
)
def test_all_are_masqueraded_but_those_whose_policy_promises_the_clients_address(
    external_policy: TrafficPolicy, masqueraded: set[str]
):
    port = service_port(external_policy=external_policy, internal_policy=LOCAL, **EXTERNAL)
    pieces = [endpoint_slice("web-1", HERE, THERE)]
    frontends = plan_service(service("web", port), pieces, node(), Defaults(masquerade_all=True))
    assert {each.type.value for each in frontends if each.masquerade} == masqueraded


def test_nobody_is_masqueraded_without_a_report():
    frontends = plan(service_port(**EXTERNAL), HERE, THERE)
    assert not any(each.masquerade for each in frontends)


UDP_PORT = port_name(protocol=Protocol.UDP)


def plan_udp(port: ServicePort, *endpoints: Endpoint) -> tuple[Frontend, ...]:
    piece = endpoint_slice("web-1", *endpoints, ports=(SlicePort("", Protocol.UDP, 8080),))
    return plan_service(service("web", port), [piece], node(zone="here"))


IN_ZONE = endpoint("10.1.0.5", zone_hints=("here",))
OUT_OF_ZONE = endpoint("10.1.0.6", zone_hints=("there",))
ENDING = terminating("10.1.0.7")
GONE = terminating("10.1.0.8", serving=False)
DEAD = endpoint("10.1.0.9", ready=False, serving=False)


@pytest.mark.parametrize(
    ("policy", "endpoints", "expected"),
    [
        pytest.param(CLUSTER, (HERE, THERE), "", id="all are used"),
        pytest.param(CLUSTER, (IN_ZONE, OUT_OF_ZONE), "6", id="out of the zone"),
        pytest.param(CLUSTER, (HERE, ENDING, GONE), "7", id="ending while others are ready"),
        pytest.param(CLUSTER, (ENDING, GONE), "", id="the last resort"),
        pytest.param(LOCAL, (HERE, THERE), "2", id="on another node"),
        pytest.param(CLUSTER, (HERE, DEAD), "", id="not serving"),
        pytest.param(CLUSTER, (HERE, UNREADY), "3", id="serving but not ready"),
    ],
)
def test_udp_stays_with_endpoints_that_serve_without_new_flows(policy, endpoints, expected):
    port = service_port(name=UDP_PORT, internal_policy=policy)
    (frontend,) = plan_udp(port, *endpoints)
    found = Choice(frontend.serving, IfEmpty.REFUSE)
    assert shown(found) == (expected or IfEmpty.REFUSE)


def test_other_protocols_have_no_endpoints_without_new_flows():
    (frontend,) = plan(service_port(internal_policy=LOCAL), HERE, THERE)
    assert frontend.serving == ()


def test_an_endpoint_without_a_node_is_local_by_the_address_of_the_node():
    own = node(addresses=("10.1.0.1",))
    piece = endpoint_slice("web-1", endpoint("10.1.0.1", None), THERE)
    (frontend,) = plan_service(service("web", service_port()), [piece], own)
    assert [each.local for each in frontend.local.backends] == [True, False]


@pytest.mark.parametrize(
    ("own", "default", "used"),
    [
        (None, Scheduler.RANDOM, Scheduler.RANDOM),
        (None, Scheduler.ROUND_ROBIN, Scheduler.ROUND_ROBIN),
        (Scheduler.RANDOM, Scheduler.ROUND_ROBIN, Scheduler.RANDOM),
        (Scheduler.ROUND_ROBIN, Scheduler.RANDOM, Scheduler.ROUND_ROBIN),
    ],
)
def test_the_scheduler_of_a_service_goes_before_the_default(own, default, used):
    port = service_port(node_port=30080)
    planned = plan_service(
        service("web", port, scheduler=own), (), node(), Defaults(scheduler=default)
    )
    assert [each.scheduler for each in planned] == [used, used]


EVERYWHERE = (HERE, THERE, UNREADY, terminating("10.1.0.7"))


@pytest.mark.parametrize(
    ("option", "own", "expected"),
    [
        (Dsr.OFF, True, False),
        (Dsr.OFF, None, False),
        (Dsr.ANNOTATED, True, True),
        (Dsr.ANNOTATED, None, False),
        (Dsr.ANNOTATED, False, False),
        (Dsr.ALL, True, True),
        (Dsr.ALL, None, True),
        (Dsr.ALL, False, False),
    ],
)
def test_option_and_annotation_together_decide_on_direct_server_return(option, own, expected):
    port = service_port(**EXTERNAL)
    planned = plan_service(service("web", port, dsr=own), (), node(), Defaults(dsr=option))
    found = {each.type.value for each in planned if each.dsr}
    assert found == ({"NodePort", "ExternalIP", "LoadBalancer"} if expected else set())


@pytest.mark.parametrize(
    ("policy", "defaults"),
    [(LOCAL, Defaults(dsr=Dsr.ALL)), (CLUSTER, Defaults(masquerade_all=True, dsr=Dsr.ALL))],
)
def test_where_the_client_is_kept_or_hidden_anyway_nothing_returns_directly(policy, defaults):
    port = service_port(external_policy=policy, **EXTERNAL)
    pieces = [endpoint_slice("web-1", *EVERYWHERE)]
    planned = plan_service(service("web", port), pieces, node(), defaults)
    assert not any(each.dsr for each in planned)


@pytest.mark.parametrize("own", [True, False, None])
@pytest.mark.parametrize("option", [Dsr.ANNOTATED, Dsr.ALL])
def test_all_endpoints_of_a_node_with_direct_server_return_may_be_sent_to(option, own):
    """Another node may have heard earlier that the Service has it."""
    pieces = [endpoint_slice("web-1", *EVERYWHERE)]
    port = service_port(node_port=30080)
    inside, outside = plan_service(
        service("web", port, dsr=own), pieces, node(), Defaults(dsr=option)
    )
    assert (inside.dsr, inside.here) == (False, ())
    assert outside.here == (
        Backend(address("10.1.0.1"), 8080, local=True, terminating=False),
        Backend(address("10.1.0.3"), 8080, local=True, terminating=False),
        Backend(address("10.1.0.7"), 8080, local=True, terminating=True),
    )
    assert not any(
        each.here for each in plan_service(service("web", port, dsr=own), pieces, node())
    )
