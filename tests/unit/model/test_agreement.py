# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from ebpflb.model.agreement import differences, expected

HERE = {"address": "10.1.0.5", "port": 8080, "local": True}
THERE = {"address": "10.1.0.6", "port": 8080, "local": False}


def choice(*backends, if_empty="refuse"):
    return {"backends": list(backends), "if_empty": if_empty}


def described(**fields):
    plain: dict[str, Any] = {
        "type": "NodePort",
        "service": "default/web",
        "port_name": "http",
        "this_node": choice(HERE, THERE),
        "elsewhere": choice(HERE),
        "internal_policy": "Cluster",
        "external_policy": "Local",
        "affinity_timeout": 0,
        "allowed_sources": [],
        "masquerade": False,
    }
    return {**plain, **fields}


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"affinity_timeout": 60}, "affinity timeout: kernel 0, model 60"),
        ({"allowed_sources": ["192.0.2.0/24"]}, "source ranges: kernel none, model 192.0.2.0/24"),
        ({"service": "default/api"}, "Service: kernel default/web, model default/api"),
        (
            {"elsewhere": choice(if_empty="refuse")},
            "clients elsewhere: backend 10.1.0.5 port 8080 of this node in the kernel alone",
        ),
        (
            {"elsewhere": choice(HERE, THERE)},
            "clients elsewhere: backend 10.1.0.6 port 8080 in the model alone",
        ),
        (
            {"elsewhere": choice(HERE, if_empty="drop")},
            "clients elsewhere: without a backend kernel refuse, model drop",
        ),
    ],
)
def test_each_difference_has_a_line(fields, difference):
    assert differences(described(), described(**fields)) == [difference]


def test_the_order_of_backends_does_not_matter():
    turned = described(this_node=choice(THERE, HERE))
    assert differences(described(), turned) == []


def test_a_frontend_that_is_there_once_differs():
    assert differences(None, None) == []
    lacks = "the kernel has this frontend, the model has not"
    assert differences(described(), None) == [lacks]


def test_what_the_model_wants_for_a_client():
    some = described(allowed_sources=["192.0.2.0/24"], this_node=choice(if_empty="drop"))
    assert expected(some, "elsewhere", "192.0.2.9") == "translated"
    assert expected(some, "elsewhere", "198.51.100.9") == "dropped"
    assert expected(some, "this_node", "192.0.2.9") == "dropped"
    assert expected(described(this_node=choice()), "this_node", "192.0.2.9") == "refused"
    assert expected(None, "this_node", "192.0.2.9") == ""
