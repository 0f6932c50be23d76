# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import asdict

import pytest

from ebpflb.cli.digests.rates import BACKEND_SUMS, SUMS, PortForm, read_short, short
from ebpflb.kubectl.rates import RatesOfCluster
from ebpflb.model.flow import BackendRate, ServiceRate


def backend(address="10.1.0.1", **fields):
    plain = {"local": False, "terminating": False, "offered": True, "active": 0, "share": None}
    state = {"trouble": "", "standing": "unwatched", **dict.fromkeys(BACKEND_SUMS, 0.0)}
    return BackendRate(**{"address": address, "port": 8080, **state, **plain, **fields})


def service(*backends, **fields):
    shares = dict.fromkeys(("largest_share", "even_share", "cross_node_share"))
    plain = {"namespace": "default", "service": "web", "port": "http", "protocol": "TCP"}
    rest = {"active": 0, "endpoints": len(backends), "troubles": (), "backends": backends}
    return ServiceRate(**{**dict.fromkeys(SUMS, 0.0), **plain, **rest, **shares, **fields})


def sent(*services, seconds=3.0):
    """As it arrives."""
    return json.loads(json.dumps(short(seconds, services)))


def test_what_carries_nothing_and_is_in_no_trouble_is_a_digest_alone():
    idle = service(backend(), backend("fd00::1"))
    assert sent(idle) == {"seconds": 3.0, "digests": [PortForm.of(idle).digest], "services": []}


def test_the_digest_is_that_of_any_other_node():
    here = service(backend(local=True), backend("10.1.0.2", connections=1.0))
    draining = backend("10.1.0.3", offered=False, active=2)
    there = service(backend("10.1.0.2"), backend(), draining)
    assert PortForm.of(here).digest == PortForm.of(there).digest
    assert PortForm.of(here).digest != PortForm.of(service(backend())).digest


@pytest.mark.parametrize(
    "told",
    [
        {"connections": 1 / 3},
        {"active": 1},
        {"failed": 2 / 3},
        {"original_bytes": 1e6 / 3},
        {"reply_bytes": 1.0},
        {"local": True},
        {"trouble": "gets nothing"},
        {"standing": "ejected", "offered": False},
        {"standing": "trial"},
        {"offered": False},
    ],
)
def test_a_backend_with_anything_of_its_own_arrives_as_it_was(told):
    own = backend("fd00::1", **told)
    (port,) = read_short(sent(service(backend(), own))).ports
    merged = RatesOfCluster()
    merged.add([port])
    (found,) = merged.services()
    shared = found.backends[0].share
    assert found.backends == (backend("fd00::1", **{**told, "share": shared}),)


def test_a_port_that_no_other_node_can_tell_of_is_told_in_full():
    alone = service(backend(local=True))
    found = read_short(sent(alone))
    assert not found.digests
    assert [port.places for port in found.ports] == ["10.1.0.1:8080"]


@pytest.mark.parametrize("told", [{"troubles": ("no local endpoint",)}, {"refused": 1.0}])
def test_a_port_whose_backends_are_idle_is_told_with_what_else_it_has(told):
    found = read_short(sent(service(backend(), **told), service(backend(), service="idle")))
    assert len(found.digests) == 2
    assert [(port.name[1], port.places) for port in found.ports] == [("web", "")]


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({"local": True}, {"active": 1}, {"local": True}),
        ({"offered": False}, {"active": 1}, {"offered": True}),
        ({"offered": False}, {"local": True}, {"offered": True, "local": True}),
        ({"active": 1, "terminating": True}, {"local": True}, {"terminating": True}),
        ({"standing": "trial"}, {"standing": "ejected"}, {"standing": "ejected"}),
        ({"standing": "trial"}, {"active": 1, "standing": "watched"}, {"standing": "trial"}),
        ({"trouble": "starved"}, {"active": 1}, {"trouble": "starved"}),
    ],
)
def test_a_backend_has_what_any_node_sees(one, other, both):
    for nodes in ((one, other), (other, one)):
        merged = RatesOfCluster()
        for seen in nodes:
            merged.add(read_short(sent(service(backend(**seen)))).ports)
        ((found,),) = [port.backends for port in merged.services()]
        assert both.items() <= asdict(found).items()


def test_idle_backends_are_as_their_form_says():
    merged = RatesOfCluster()
    merged.add_form(PortForm.of(service(backend(standing="watched", terminating=True))))
    ((found,),) = [port.backends for port in merged.services()]
    assert found == backend(standing="watched", terminating=True)


def test_numbers_arrive_as_they_were():
    counts = {"connections": 100 / 3, "active": 4, "retransmits": 1 / 3, "cross_node_share": 0.1}
    (port,) = read_short(sent(service(troubles=("no endpoint",), **counts))).ports
    assert port.numbers == [100 / 3, 4, 0, 0, 0, 1 / 3, 0, 0]
    assert (port.far, port.troubles) == (0.1, ("no endpoint",))
