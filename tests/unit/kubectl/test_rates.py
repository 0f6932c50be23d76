# SPDX-License-Identifier: Apache-2.0
from dataclasses import asdict

import msgspec
import pytest

from ebpflb.kubectl.rates import RatesOfCluster
from ebpflb.model.compact.rates import port_row
from ebpflb.model.flow import ServiceRate
from tests.unit.model.compact.rates import backend, service


def merged(*nodes) -> list[ServiceRate]:
    """What nodes with one Service each have together."""
    rates = RatesOfCluster()
    for each in nodes:
        rates.add(rates.read(msgspec.json.encode([port_row(each)])))
    return rates.services()


@pytest.mark.parametrize(
    "told",
    [
        {"connections": 0.333},
        {"active": 1},
        {"failed": 0.667},
        {"original_bytes": 333333.333},
        {"reply_bytes": 1.0},
        {"local": True},
        {"trouble": "gets nothing"},
        {"ejection": "ejected", "offered": False},
        {"ejection": "trial"},
        {"offered": False},
    ],
)
def test_a_backend_with_anything_of_its_own_arrives_as_it_was(told):
    own = backend("fd00::1", **told)
    (found,) = merged(service(backend(), own))
    ((v4, v6),) = [found.backends]
    assert v4 == backend(share=v4.share)
    assert v6 == backend("fd00::1", **{**told, "share": v6.share})


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({"local": True}, {"active": 1}, {"local": True}),
        ({"offered": False}, {"active": 1}, {"offered": True}),
        ({"offered": False}, {"local": True}, {"offered": True, "local": True}),
        ({"active": 1, "terminating": True}, {"local": True}, {"terminating": True}),
        ({"ejection": "trial"}, {"ejection": "ejected"}, {"ejection": "ejected"}),
        (
            {"ejection": "trial"},
            {"active": 1, "ejection": "watched"},
            {"ejection": "trial"},
        ),
        ({"trouble": "starved"}, {"active": 1}, {"trouble": "starved"}),
    ],
)
def test_a_backend_has_what_any_node_sees(one, other, both):
    for nodes in ((one, other), (other, one)):
        ((found,),) = [port.backends for port in merged(*(service(backend(**n)) for n in nodes))]
        assert both.items() <= asdict(found).items()


def test_idle_backends_are_as_their_form_says():
    ((found,),) = [
        port.backends for port in merged(service(backend(ejection="watched", terminating=True)))
    ]
    assert found == backend(ejection="watched", terminating=True)


def test_numbers_arrive_as_they_were():
    counts = {"connections": 33.333, "active": 4, "retransmits": 0.333, "cross_node_share": 0.1}
    (found,) = merged(service(troubles=("no endpoint",), **counts))
    assert {name: getattr(found, name) for name in counts} == counts
    assert found.troubles == ("no endpoint",)


def test_numbers_of_nodes_with_different_backends_are_added_up():
    one = service(backend(connections=2.0), backend("10.1.0.2"), connections=2.0)
    other = service(backend(connections=1.0), connections=1.0)
    (found,) = merged(one, one, other)
    assert found.connections == 5.0
    assert [each.connections for each in found.backends] == [5.0, 0.0]
