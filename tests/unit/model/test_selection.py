# SPDX-License-Identifier: Apache-2.0
"""Which Services ebpflb serves where another proxy serves the others."""

from dataclasses import replace

import pytest

from ebpflb.config.label_selector import parse_label_selector
from ebpflb.model.address import Protocol
from ebpflb.model.changes import Changes
from ebpflb.model.endpoint import SlicePort
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.model.pod import PodNamespace
from ebpflb.model.selection import EVERYTHING, PROXY_LABEL, Selection
from ebpflb.model.service import Labels, Service, ServiceCidr, ServiceName, TrafficPolicy
from tests.builders import NODE, endpoint, endpoint_slice, port_name, service, service_port

WEB, SHOP = ServiceName("default", "web"), ServiceName("default", "shop")
CANARY: Labels = (("canary", "yes"),)
CIDR = ServiceCidr("kubernetes", ("10.96.0.0/16",))


def selection(services: str = "", namespaces: str = "") -> Selection:
    return Selection(parse_label_selector(services), parse_label_selector(namespaces))


def known(chosen: Selection, *items: object) -> Changes:
    changes = Changes(NODE, selection=chosen)
    for item in items:
        changes.set(item)  # type: ignore[arg-type]
    return changes


def labelled(labels: Labels = CANARY, name: str = "web", *ports: object) -> Service:
    return replace(service(name, *ports), labels=labels)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "left_out"),
    [
        (EVERYTHING, ""),
        (selection("canary=yes"), ""),
        (selection("", "team=a"), ""),
        (selection("canary=yes", "team in (a,b)"), ""),
        (selection("", "kubernetes.io/metadata.name=default"), ""),
        (selection("canary=no"), "not selected by --service-selector 'canary=no'"),
        (selection("canary", "team=b"), "not selected by --namespace-selector 'team=b'"),
    ],
)
def test_both_selectors_must_match(chosen: Selection, left_out: str):
    changes = known(chosen, PodNamespace("default", labels=(("team", "a"),)), labelled())
    assert changes.why_left_out(labelled()) == left_out
    assert bool(changes.plan(WEB)) is not bool(left_out)
    assert changes.left_out == bool(left_out)


def proxied(name: str, *ports: object) -> Service:
    return labelled(((PROXY_LABEL, name),), "web", *ports)


def test_a_proxy_with_a_name_serves_what_has_it_and_nothing_else():
    chosen = Selection(proxy_name="ebpflb")
    assert known(chosen, proxied("ebpflb")).plan(WEB)
    for other in (proxied("other"), labelled(())):
        changes = known(chosen, other)
        assert changes.plan(WEB) == ()
        assert changes.why_left_out(other) == "not selected by --service-proxy-name 'ebpflb'"
    assert chosen.options == {"service-proxy-name": "ebpflb"}
    assert chosen.label_keys == {PROXY_LABEL}
    both = selection("canary")._replace(proxy_name="ebpflb")
    assert known(both, proxied("ebpflb")).plan(WEB) == ()


def test_a_proxy_with_a_name_answers_the_health_checks_of_its_services_alone():
    local = TrafficPolicy.LOCAL
    port = service_port(external_policy=local, node_port=30080, health_check_node_port=32000)
    chosen = Selection(proxy_name="ebpflb")
    assert known(chosen, CIDR, proxied("ebpflb", port)).health_check(WEB)
    assert known(chosen, CIDR, proxied("other", port)).health_check(WEB) is None
    assert known(chosen, CIDR, proxied("ebpflb", port)).service_ranges == ()


def test_the_options_that_are_given_and_the_labels_that_decide():
    chosen = selection("canary=yes,!old", "team=a")
    assert chosen.options == {"service-selector": "canary=yes,!old", "namespace-selector": "team=a"}
    assert chosen.label_keys == {"canary", "old", "team"}
    assert chosen.is_limited
    assert not EVERYTHING.is_limited
    assert not EVERYTHING.options


def test_a_label_that_comes_and_goes_moves_the_service():
    changes = known(selection("canary=yes"), labelled(()), endpoint_slice("web-1", endpoint()))
    changes.take()
    changes.set(labelled())
    assert changes.take() == {WEB}
    assert changes.plan(WEB)
    changes.set(labelled(()))
    assert changes.take() == {WEB}
    assert changes.plan(WEB) == ()
    changes.remove(ObjectKey(Kind.SERVICE, *WEB))
    assert changes.left_out == 0


def test_a_namespace_moves_its_services_and_no_others():
    other = Service(ServiceName("other", "web"), (service_port("10.96.0.30"),))
    changes = known(selection("", "team=a"), labelled(), other)
    assert changes.left_out == 2
    changes.take()
    changes.set(PodNamespace("default", labels=(("team", "a"),)))
    assert changes.take() == {WEB}
    assert changes.plan(WEB)
    changes.set(PodNamespace("default", socket_lb=False, labels=(("team", "a"),)))
    assert changes.take() == set()
    changes.remove(ObjectKey(Kind.NAMESPACE, "", "default"))
    assert changes.take() == {WEB}
    assert changes.plan(WEB) == ()


def test_an_older_service_keeps_its_frontend_although_another_proxy_serves_it():
    old = replace(service("shop", service_port("10.96.0.20", node_port=30080)), created="2")
    young = replace(labelled(CANARY, "web", service_port(node_port=30080)), created="3")
    changes = known(selection("canary"), old, young)
    assert [each.key.port for each in changes.plan(WEB)] == [80]
    assert [each.loser for each in changes.conflicts()] == [WEB]


def test_a_conflict_of_a_service_that_is_left_out_is_not_ours():
    port = service_port("10.96.0.20", node_port=30080)
    old = replace(labelled(CANARY, "shop", port), created="2")
    young = replace(service("web", service_port(node_port=30080)), created="3")
    assert known(selection("canary"), old, young).conflicts() == ()
    assert len(known(EVERYTHING, old, young).conflicts()) == 1


def test_what_concerns_all_services_is_left_to_the_other_proxy():
    local = TrafficPolicy.LOCAL
    port = service_port(external_policy=local, node_port=30080, health_check_node_port=32000)
    items = (CIDR, labelled(CANARY, "web", port))
    assert known(EVERYTHING, *items).service_ranges == CIDR.ranges
    assert known(EVERYTHING, *items).health_check(WEB)
    assert known(selection("canary=yes"), *items).service_ranges == ()
    assert known(selection("canary=yes"), *items).health_check(WEB) is None


def test_udp_flows_of_a_service_that_is_left_out_keep_what_serves():
    tcp = service_port(port=80)
    udp = service_port(port=53, name=port_name(protocol=Protocol.UDP))
    last = endpoint("10.1.0.2", ready=False, serving=True, terminating=True)
    ended = endpoint("10.1.0.3", ready=False, serving=False)
    piece = endpoint_slice(
        "web-1",
        *(endpoint("10.1.0.1"), last, ended),
        ports=tuple(SlicePort("", each, 8080) for each in (Protocol.TCP, Protocol.UDP)),
    )
    changes = known(selection("canary"), labelled((), "web", tcp, udp), piece)
    assert changes.plan(WEB) == ()
    (found,) = changes.withdrawn(WEB)
    assert (found.key.port, found.service.protocol, found.withdrawn) == (53, Protocol.UDP, True)
    assert [(each.address[-1], each.terminating) for each in found.serving] == [
        (1, False),
        (2, True),
    ]
    assert not found.local.backends
    assert not found.others.backends
    changes.set(labelled(CANARY, "web", tcp, udp))
    assert changes.withdrawn(WEB) == ()
    assert changes.withdrawn(SHOP) == ()
