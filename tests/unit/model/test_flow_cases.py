# SPDX-License-Identifier: Apache-2.0
"""Endpoints for local pods and external clients, case by case as in kube-proxy's flow tests.

Endpoints are named by letters; those in capitals are on this node.
"""

from typing import Any, NamedTuple

import pytest

from ebpflb.model.address import format_address
from ebpflb.model.endpoint import Endpoint
from ebpflb.model.plan import Choice, FrontendType, plan_service
from ebpflb.model.service import TrafficPolicy
from tests.builders import (
    OTHER_NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    service,
    service_port,
    terminating,
)

EXTERNAL_FRONTENDS: dict[str, Any] = {
    "node_port": 30080,
    "external_ips": (address("203.0.113.1"),),
    "load_balancer_ips": (address("203.0.113.2"),),
}
LOCAL = TrafficPolicy.LOCAL
INTERNAL_LOCAL: dict[str, Any] = {"internal_policy": LOCAL}
EXTERNAL_LOCAL: dict[str, Any] = {"external_policy": LOCAL}

NUMBERS = {letter: number for number, letter in enumerate("ABCDabcd", 1)}


class Case(NamedTuple):
    """Letters with what they are; who gets which of them at the ClusterIP and elsewhere.

    pod, outside: at external frontends.
    """

    policies: dict[str, Any]
    ready: str
    ending: str
    dead: str
    cluster_ip: str
    pod: str
    outside: str


CASES = {
    "no endpoints": Case({}, "", "", "", "refuse", "refuse", "refuse"),
    "no endpoints, external Local": Case(EXTERNAL_LOCAL, "", "", "", "refuse", "refuse", "refuse"),
    "external Cluster": Case({}, "Aa", "", "", "Aa", "Aa", "Aa"),
    "external Local": Case(EXTERNAL_LOCAL, "Aa", "", "", "Aa", "Aa", "A"),
    "internal Cluster": Case({}, "Aab", "", "", "Aab", "Aab", "Aab"),
    "internal Local, one here": Case(INTERNAL_LOCAL, "Aab", "", "", "A", "Aab", "Aab"),
    "internal Local, two here": Case(INTERNAL_LOCAL, "ABa", "", "", "AB", "ABa", "ABa"),
    "internal Local, none here": Case(INTERNAL_LOCAL, "abc", "", "", "drop", "abc", "abc"),
    "external Local, ready ones here beside ending ones": Case(
        EXTERNAL_LOCAL, "ABa", "C", "D", "ABa", "ABa", "AB"
    ),
    "external Local, only ending ones here": Case(EXTERNAL_LOCAL, "a", "AB", "C", "a", "a", "AB"),
    "external Local, one ending elsewhere": Case(EXTERNAL_LOCAL, "", "a", "", "a", "a", "drop"),
    "external Local, only dead ones": Case(
        EXTERNAL_LOCAL, "", "", "Aa", "refuse", "refuse", "refuse"
    ),
    "external Cluster, ready ones beside others": Case({}, "ABa", "b", "c", "ABa", "ABa", "ABa"),
    "external Cluster, only ending ones": Case({}, "", "ABa", "b", "ABa", "ABa", "ABa"),
    "external Cluster, one ending elsewhere": Case({}, "", "a", "", "a", "a", "a"),
    "external Cluster, only dead ones": Case({}, "", "", "Aa", "refuse", "refuse", "refuse"),
}


def ip(letter: str) -> str:
    return f"10.1.0.{NUMBERS[letter]}"


def where(letter: str) -> str:
    return node().name if letter.isupper() else OTHER_NODE


def endpoints(case: Case) -> list[Endpoint]:
    return [
        *(endpoint(ip(each), where(each)) for each in case.ready),
        *(terminating(ip(each), where(each)) for each in case.ending),
        *(terminating(ip(each), where(each), serving=False) for each in case.dead),
    ]


def shown(choice: Choice) -> str:
    letters = {number: letter for letter, number in NUMBERS.items()}
    numbers = [int(format_address(each.address).split(".")[-1]) for each in choice.backends]
    return "".join(letters[number] for number in numbers) or choice.if_empty


def flows(case: Case, *pieces: Endpoint) -> dict[FrontendType, tuple[str, str]]:
    """What each frontend gives to pods of this node, and to clients outside."""
    port = service_port(**case.policies, **EXTERNAL_FRONTENDS)
    planned = plan_service(service("web", port), [endpoint_slice("web-1", *pieces)], node())
    return {each.type: (shown(each.local), shown(each.others)) for each in planned}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_each_source_is_sent_where_it_should(case: Case):
    external = set(FrontendType) - {FrontendType.CLUSTER_IP}
    expected = dict.fromkeys(external, (case.pod, case.outside))
    assert flows(case, *endpoints(case)) == {
        **expected,
        FrontendType.CLUSTER_IP: (case.cluster_ip, case.cluster_ip),
    }


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_once_the_slice_is_empty_everybody_is_refused(case: Case):
    assert set(flows(case).values()) == {("refuse", "refuse")}
