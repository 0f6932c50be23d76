# SPDX-License-Identifier: Apache-2.0
"""Services with a backup in the model as a whole: plans, what is planned again, and why."""

from collections.abc import Iterable
from dataclasses import replace

from ebpflb.config.label_selector import parse_label_selector
from ebpflb.model.address import Protocol, SocketAddress, format_address, parse_address
from ebpflb.model.backup.spill import QUIET_SECONDS
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import EjectionState, FailureCount
from ebpflb.model.endpoint import Endpoint, EndpointSlice, SlicePort
from ebpflb.model.extensions.limits import OpenLimit
from ebpflb.model.plan import Backend, Choice, Defaults, Frontend, IfEmpty
from ebpflb.model.selection import Selection
from ebpflb.model.service import Dsr, Service, ServiceName, TrafficPolicy
from ebpflb.words.backup import BackupUse
from tests.builders import (
    NODE,
    OTHER_NODE,
    endpoint,
    endpoint_slice,
    node,
    port_name,
    service,
    service_port,
    terminating,
)

WEB, STATIC = ServiceName("default", "web"), ServiceName("default", "static")
LIMITED = service("web", backup="static", spill_at=10)
BACKED = service("web", backup="static")
STATIC_SERVICE = service("static", service_port("10.96.0.20"))
OWN, OWN_UNREADY = endpoint("10.1.0.1"), endpoint("10.1.0.1", ready=False)
LENT, LENT_ELSEWHERE = endpoint("10.2.0.1"), endpoint("10.2.0.2", OTHER_NODE)


def own(*endpoints: Endpoint, **fields: object) -> EndpointSlice:
    return endpoint_slice("web-1", *endpoints, **fields)


def others(*endpoints: Endpoint, **fields: object) -> EndpointSlice:
    return endpoint_slice("static-1", *endpoints, **{"service": "static", **fields})


def known(*objects: object, defaults: Defaults = Defaults()) -> Changes:  # noqa: B008  frozen
    changes = Changes(NODE, defaults=defaults)
    for each in (node(), *objects):
        changes.set(each)  # type: ignore[arg-type]
    changes.take()
    return changes


def of(changes: Changes, name: ServiceName = WEB) -> Frontend:
    return changes.plan(name)[0]


def places(backends: Iterable[Backend]) -> list[str]:
    return [format_address(each.address) for each in backends]


def offered(changes: Changes) -> list[str]:
    return places(of(changes).others.backends)


def test_new_connections_go_to_the_backup_while_no_endpoint_is_usable():
    changes = known(BACKED, STATIC_SERVICE, own(OWN_UNREADY), others(LENT, LENT_ELSEWHERE))
    found = of(changes)
    assert places(found.local.backends) == ["10.2.0.1", "10.2.0.2"]
    assert (found.backup, found.service.service) == (BackupUse.ONLY, "web")
    changes.set(own(OWN))
    assert changes.take() == {WEB}
    assert (offered(changes), of(changes).backup) == (["10.1.0.1"], BackupUse.NONE)


def test_the_backup_itself_is_as_it_would_be():
    plain = known(STATIC_SERVICE, others(LENT))
    assert known(BACKED, STATIC_SERVICE, others(LENT)).plan(STATIC) == plain.plan(STATIC)


def test_endpoints_that_serve_while_they_terminate_come_first():
    changes = known(BACKED, STATIC_SERVICE, own(terminating("10.1.0.1")), others(LENT))
    assert (offered(changes), of(changes).backup) == (["10.1.0.1"], BackupUse.NONE)


def test_the_service_is_planned_again_with_each_change_of_its_backup():
    changes = known(BACKED, STATIC_SERVICE, others(LENT))
    changes.set(others(LENT_ELSEWHERE))
    assert changes.take() == {STATIC, WEB}
    assert offered(changes) == ["10.2.0.2"]
    changes.set(replace(STATIC_SERVICE, ports=()))
    assert changes.take() == {STATIC, WEB}
    assert of(changes).others == Choice((), IfEmpty.REFUSE)
    changes.set(service("web"))
    changes.take()
    changes.set(STATIC_SERVICE)
    assert changes.take() == {STATIC}


def test_two_services_may_have_one_backup():
    api = service("api", service_port("10.96.0.30"), backup="static")
    changes = known(BACKED, api, STATIC_SERVICE, others(LENT))
    changes.set(service("web"))
    changes.take()
    changes.set(others())
    assert changes.take() == {STATIC, ServiceName("default", "api")}


def test_a_backup_of_a_backup_is_not_followed():
    chained = service("static", service_port("10.96.0.20"), backup="last")
    last = service("last", service_port("10.96.0.40"))
    changes = known(BACKED, chained, last, others(), endpoint_slice("last-1", LENT, service="last"))
    assert offered(changes) == []
    assert places(of(changes, STATIC).others.backends) == ["10.2.0.1"]


def test_two_services_may_be_the_backup_of_each_other():
    back = service("static", service_port("10.96.0.20"), backup="web")
    changes = known(BACKED, back, own(), others(LENT))
    assert offered(changes) == ["10.2.0.1"]
    changes.set(others())
    assert changes.take() == {WEB, STATIC}
    assert offered(changes) == []


def test_policy_local_refuses_where_no_node_has_an_endpoint_and_drops_where_another_has_one():
    port = service_port(external_policy=TrafficPolicy.LOCAL, node_port=30080)
    local = service("web", port, backup="static")
    changes = known(local, STATIC_SERVICE, own(OWN_UNREADY), others(LENT_ELSEWHERE))
    _, outside = changes.plan(WEB)
    assert (places(outside.local.backends), outside.others.if_empty) == (
        ["10.2.0.2"],
        IfEmpty.DROP,
    )
    # Emptiness counts in the whole cluster: another node's endpoint keeps this one off the backup.
    changes.set(own(endpoint("10.1.0.9", OTHER_NODE)))
    changes.set(others(LENT))
    _, outside = changes.plan(WEB)
    assert (outside.others.backends, outside.others.if_empty) == ((), IfEmpty.DROP)


def ready_here(changes: Changes) -> list[int]:
    check = changes.health_check(WEB)
    return list(check.local_ready.values()) if check else []


def test_a_health_check_counts_what_is_lent():
    port = service_port(external_policy=TrafficPolicy.LOCAL, health_check_node_port=32000)
    changes = known(
        service("web", port, backup="static"),
        STATIC_SERVICE,
        own(OWN),
        others(LENT, LENT_ELSEWHERE),
    )
    assert ready_here(changes) == [1]
    changes.set(own(OWN_UNREADY, endpoint("10.1.0.2", ready=False)))
    assert ready_here(changes) == [1]
    changes.set(others())
    assert ready_here(changes) == [0]


def test_hints_of_the_backups_slices_count_while_it_is_alone():
    near, far = (
        endpoint("10.2.0.1", zone_hints=("here",)),
        endpoint("10.2.0.2", zone_hints=("there",)),
    )
    changes = known(BACKED, STATIC_SERVICE, own(), others(near, far))
    changes.set(node(zone="here"))
    assert offered(changes) == ["10.2.0.1"]


def test_flows_keep_their_endpoint_of_the_backup_and_tunnels_find_it():
    port = service_port(node_port=30080, name=port_name("", Protocol.UDP))
    udp = (SlicePort("", Protocol.UDP, 53),)
    changes = known(
        service("web", port, backup="static", dsr=True),
        service("static", service_port("10.96.0.20", name=port_name("", Protocol.UDP))),
        own(OWN, ports=udp),
        others(LENT, ports=udp),
        defaults=Defaults(dsr=Dsr.ANNOTATED),
    )
    _, outside = changes.plan(WEB)
    assert places(outside.others.backends) == ["10.1.0.1"]
    assert places(outside.serving) == ["10.2.0.1"]
    assert places(outside.here) == ["10.1.0.1", "10.2.0.1"]


def test_an_endpoint_of_the_backup_that_fails_is_ejected_as_one_of_its_own():
    changes = known(
        service("web", backup="static", ejection=3), STATIC_SERVICE, others(LENT, LENT_ELSEWHERE)
    )
    port = of(changes).service
    place = SocketAddress(parse_address("10.2.0.1"), 8080)
    (change,) = changes.observe_failures({port: {place: FailureCount(3)}}, 0)
    assert change.place == place
    assert changes.take() == {WEB}
    assert offered(changes) == ["10.2.0.2"]
    assert of(changes).others.backends[0].ejection is EjectionState.WATCHED


def test_endpoints_that_are_ejected_are_usable():
    changes = known(
        service("web", backup="static", ejection=3),
        STATIC_SERVICE,
        own(OWN, endpoint("10.1.0.2")),
        others(LENT),
    )
    port = of(changes).service
    failing = {SocketAddress(parse_address(each), 8080) for each in ("10.1.0.1", "10.1.0.2")}
    changes.observe_failures({port: dict.fromkeys(failing, FailureCount(9))}, 0)
    assert offered(changes) == ["10.1.0.2"]
    assert of(changes).backup is BackupUse.NONE


def test_a_service_spills_over_while_it_has_many_connections():
    changes = known(LIMITED, STATIC_SERVICE, own(OWN), others(LENT))
    port = of(changes).service
    assert of(changes).counts_open
    assert changes.backups.limits() == {port: 10}
    assert changes.backups.has_spilling
    changes.backups.observe({port: 9}, 0)
    assert changes.take() == set()
    changes.backups.observe({port: 10}, 1)
    assert changes.take() == {WEB}
    assert (offered(changes), of(changes).backup) == (["10.1.0.1", "10.2.0.1"], BackupUse.SPILL)
    changes.backups.observe({port: 7}, 2)
    changes.backups.observe({port: 7}, 2 + QUIET_SECONDS)
    assert changes.take() == {WEB}
    assert offered(changes) == ["10.1.0.1"]


def test_without_endpoints_a_service_that_spills_over_is_on_its_backup_alone():
    changes = known(LIMITED, STATIC_SERVICE, own(OWN), others(LENT))
    changes.backups.observe({of(changes).service: 10}, 0)
    changes.set(own(OWN_UNREADY))
    assert (offered(changes), of(changes).backup) == (["10.2.0.1"], BackupUse.ONLY)


def test_without_the_annotation_it_does_not_spill_over_any_more():
    changes = known(LIMITED, STATIC_SERVICE, own(OWN), others(LENT))
    changes.backups.observe({of(changes).service: 10}, 0)
    changes.set(BACKED)
    assert (offered(changes), of(changes).counts_open) == (["10.1.0.1"], False)
    changes.set(BACKED.annotated_with(max_open=OpenLimit(5)))
    assert of(changes).counts_open
    assert changes.backups.has_spilling
    changes.backups.observe({}, 1)
    assert not changes.backups.has_spilling


def test_nothing_spills_over_to_a_service_that_does_not_allow_it():
    changes = known(service("web", backup="ops/static", spill_at=1), own(OWN))
    assert changes.backups.limits() == {}
    assert not changes.backups.has_spilling


def test_problems_come_and_go_with_the_backup():
    changes = known(service("web", backup="static", problems=("odd",)), service("api", spill_at=3))
    found = {(each.service.name, each.event) for each in changes.problems()}
    assert found == {("web", "InvalidAnnotation"), ("api", "InvalidAnnotation")}
    assert [each.text for each in changes.problems() if each.service == WEB] == [
        "odd",
        "the annotation ebpflb.io/backup has no effect: there is no Service default/static with a "
        "ClusterIP",
    ]
    changes.set(STATIC_SERVICE)
    assert [each.text for each in changes.problems() if each.service == WEB] == ["odd"]
    changes.set(service("web"))
    assert [each for each in changes.problems() if each.service == WEB] == []


def test_only_ports_that_the_backup_has_too_use_it():
    two = service("web", service_port(), service_port("fd00::1"), backup="static")
    changes = known(two, STATIC_SERVICE, others(LENT))
    assert [each.backup for each in changes.plan(WEB)] == [BackupUse.ONLY, BackupUse.NONE]


def test_flow_records_know_the_endpoints_of_a_backup():
    changes = known(BACKED, STATIC_SERVICE, own(OWN), others(LENT))
    assert changes.backups.known_slices(WEB) == (own(OWN), others(LENT))
    assert changes.backups.known_slices(STATIC) == changes.slices(STATIC)
    assert changes.backups.known_slices(ServiceName("default", "gone")) == ()


def test_a_service_left_to_another_proxy_keeps_the_flows_to_its_backup():
    udp = port_name("", Protocol.UDP)
    ports = (SlicePort("", Protocol.UDP, 53),)
    selection = Selection(parse_label_selector("mine=yes"))
    changes = Changes(NODE, selection=selection)
    served = service("web", service_port(name=udp), backup="static", labels=(("mine", "yes"),))
    backup = service("static", service_port("10.96.0.20", name=udp))
    for each in (node(), served, backup, others(LENT, ports=ports)):
        changes.set(each)
    assert offered(changes) == ["10.2.0.1"]
    changes.set(replace(served, labels=()))
    (left,) = changes.withdrawn(WEB)
    assert places(left.serving) == ["10.2.0.1"]


def renamed(found: Service, namespace: str) -> Service:
    ports = (replace(each, name=each.name._replace(namespace=namespace)) for each in found.ports)
    return replace(found, name=found.name._replace(namespace=namespace), ports=tuple(ports))


def test_another_namespace_lends_once_it_allows_that_and_no_longer_when_it_does_not():
    asking = service("web", backup="ops/static")
    closed = renamed(STATIC_SERVICE, "ops")
    changes = known(asking, closed, others(LENT, namespace="ops"))
    assert offered(changes) == []
    changes.set(closed.annotated_with(backup_for=("default",)))
    assert changes.take() == {WEB, closed.name}
    assert (offered(changes), changes.problems()) == (["10.2.0.1"], ())
    changes.set(closed)
    changes.take()
    assert offered(changes) == []
