# SPDX-License-Identifier: Apache-2.0
"""What a backup lends: to whom, for which port, when, and what is told if it cannot."""

from dataclasses import replace

import pytest

from ebpflb.model.address import Protocol
from ebpflb.model.backup.lending import (
    backup_name,
    lend,
    lent_slices,
    matching_port,
    may_use,
    problems_of,
)
from ebpflb.model.service import Service, ServiceName, ServicePort
from ebpflb.words.backup import BackupUse
from tests.builders import endpoint, port_endpoint, port_name, service, service_port, terminating

NONE, SPILL, ONLY = BackupUse.NONE, BackupUse.SPILL, BackupUse.ONLY
READY, UNREADY = endpoint("10.1.0.1"), endpoint("10.1.0.2", ready=False)
LAST = terminating("10.1.0.3")
OTHER, OTHER_UNREADY = endpoint("10.2.0.1"), endpoint("10.2.0.2", ready=False)
OTHER_LAST = terminating("10.2.0.3")
HTTP = service_port(name=port_name("http"))


def in_namespace(namespace: str, found: Service) -> Service:
    ports = (replace(each, name=each.name._replace(namespace=namespace)) for each in found.ports)
    return replace(found, name=found.name._replace(namespace=namespace), ports=tuple(ports))


@pytest.mark.parametrize(
    ("text", "name"),
    [("static", ServiceName("default", "static")), ("ops/static", ServiceName("ops", "static"))],
)
def test_a_backup_without_namespace_is_in_the_services_own(text, name):
    assert backup_name(service(backup=text)) == name


def test_a_service_without_the_annotation_has_none():
    assert backup_name(service()) is None


@pytest.mark.parametrize(
    ("backup", "is_allowed"),
    [
        (None, False),
        (service("static"), True),
        (replace(service("static"), ports=()), False),
        (service("web"), False),
        (in_namespace("ops", service("static")), False),
        (in_namespace("ops", service("static", backup_for=("shop",))), False),
        (in_namespace("ops", service("static", backup_for=("shop", "default"))), True),
        (in_namespace("ops", service("static", backup_for=("*",))), True),
    ],
    ids=["unknown", "own namespace", "headless", "itself", "silent", "others", "named", "all"],
)
def test_another_namespace_must_allow_it(backup, is_allowed):
    assert may_use(service("web"), backup) is is_allowed


@pytest.mark.parametrize(
    ("ports", "number"),
    [
        ((service_port(port=80), replace(HTTP, port=8080)), 8080),
        ((service_port(port=80, name=port_name("other")), service_port(port=81)), 80),
        ((service_port(port=81, name=port_name("other")),), 81),
        ((service_port(port=81, name=port_name("a")), service_port(port=82)), None),
        ((service_port(name=port_name("http", Protocol.UDP)),), None),
        ((service_port("fd00::1", name=port_name("http")),), None),
    ],
    ids=["name", "number", "the only one", "none of several", "other protocol", "other family"],
)
def test_the_port_is_found_by_name_then_number_then_if_it_is_alone(ports, number):
    found = matching_port(HTTP, service("static", *ports))
    assert (found.port if found else None) == number


@pytest.mark.parametrize(
    ("own", "others", "spills", "use"),
    [
        ([], [OTHER], False, ONLY),
        ([UNREADY], [OTHER], False, ONLY),
        ([UNREADY], [OTHER_LAST], True, ONLY),
        ([UNREADY], [OTHER_UNREADY], False, NONE),
        ([READY], [OTHER], False, NONE),
        ([LAST], [OTHER], False, NONE),
        ([READY], [OTHER], True, SPILL),
        ([READY], [OTHER_LAST, OTHER_UNREADY], True, NONE),
        ([READY], [READY], True, NONE),
        ([UNREADY], [UNREADY], False, NONE),
    ],
)
def test_when_a_port_uses_its_backup(own, others, spills, use):
    pairs = (list(map(port_endpoint, each)) for each in (own, others))
    assert lend(*pairs, spills=spills).use is use


def lent_of(own, others, port: ServicePort = HTTP, *, spills: bool = False):
    lent = lend(list(map(port_endpoint, own)), others, spills=spills)
    return list(lent_slices(port, lent))


def test_what_is_lent_is_a_slice_of_the_service_itself_for_each_number():
    others = [port_endpoint(OTHER, 81), port_endpoint(OTHER_LAST, 82), port_endpoint(LAST, 81)]
    first, second = lent_of([], others)
    assert (first.namespace, first.service, first.family) == ("default", "web", HTTP.family)
    assert [tuple(each) for each in first.ports] == [("http", Protocol.TCP, 81)]
    assert list(first.endpoints) == [OTHER, LAST]
    assert [tuple(each) for each in second.ports] == [("http", Protocol.TCP, 82)]
    assert list(second.endpoints) == [OTHER_LAST]


def test_what_is_not_in_use_serves_but_is_not_usable():
    (piece,) = lent_of([READY], map(port_endpoint, [OTHER, OTHER_LAST, OTHER_UNREADY]))
    assert [each.serving for each in piece.endpoints] == [True, True, True]
    assert not any(each.ready or each.is_last_resort for each in piece.endpoints)


def test_its_own_endpoints_are_not_lent():
    assert lent_of([UNREADY], [port_endpoint(UNREADY)]) == []


def told(found: Service, backup: Service | None) -> str:
    return "; ".join(problems_of(found, backup))


def test_nothing_is_wrong_with_a_backup_that_has_the_port():
    assert told(service(backup="static"), service("static")) == ""
    assert told(service(), None) == ""


def test_a_backup_that_does_not_exist_and_one_that_does_not_allow_it_are_told_alike():
    asking = service(backup="ops/static")
    unknown, unwilling = None, in_namespace("ops", service("static"))
    assert told(asking, unknown) == told(asking, unwilling)
    assert told(asking, unknown) == (
        "the annotation ebpflb.io/backup has no effect: there is no Service ops/static with a "
        "ClusterIP whose annotation ebpflb.io/backup-for names default"
    )


@pytest.mark.parametrize(
    ("found", "backup", "why"),
    [
        (service(spill_at=3), None, "spill-at has no effect without ebpflb.io/backup"),
        (service(backup="web"), service(), "a Service cannot be its own backup"),
        (service(backup="static"), None, "there is no Service default/static with a ClusterIP"),
        (
            service("web", HTTP, backup="static"),
            service("static", service_port(port=1, name=port_name("", Protocol.UDP))),
            "no effect for port http/TCP over IPv4: default/static has no such port",
        ),
        (
            service("web", service_port("fd00::1"), backup="static"),
            service("static"),
            "no effect for port 80/TCP over IPv6: default/static has no such port",
        ),
    ],
)
def test_what_has_no_effect_is_told(found, backup, why):
    assert told(found, backup).endswith(why)


def test_words_for_people():
    assert [each.shown for each in BackupUse] == ["", "spills over to its backup", "on its backup"]
