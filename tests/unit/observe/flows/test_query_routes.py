# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from ebpflb.model.address import parse_address
from ebpflb.model.changes import Changes
from ebpflb.model.pod import Pod
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.queries import query_routes
from ebpflb.observe.http.query_socket import HttpQueryError, Query
from ebpflb.web.answers import Answer
from tests.builders import NODE, endpoint, endpoint_slice, service
from tests.unit.agent.flows import pod_of


def ask(changes, start, *path, **parameters):
    log = FlowLog(1, changes, lambda: None, pod_of(changes))
    reply = query_routes(changes, log)[start](Query(path, parameters))
    assert isinstance(reply, Answer)
    return json.loads(reply.body)


def test_pods_and_services_are_known_by_name():
    changes = Changes(NODE)
    changes.set(service())
    changes.set(service("shop"))
    pods = (
        endpoint("10.1.0.1", pod="default/web-b"),
        endpoint("10.1.0.2", pod="default/web-a"),
        endpoint("10.1.0.3"),
    )
    changes.set(endpoint_slice(endpoints=pods))
    changes.set(endpoint_slice("web-2", endpoints=(endpoint("10.1.0.4", pod="default/web-a"),)))
    here = (parse_address("10.1.0.9"),)
    changes.set(Pod("shop", "curl-x1", here, workload="Deployment/curl"))
    assert ask(changes, "/v1/names") == {
        "pods": {
            "default/web-a": ["10.1.0.2", "10.1.0.4"],
            "default/web-b": ["10.1.0.1"],
            "shop/curl-x1": ["10.1.0.9"],
        },
        "workloads": {"shop/curl-x1": "Deployment/curl"},
        "services": ["default/shop", "default/web"],
    }


def test_what_names_do_not_take_is_refused():
    with pytest.raises(HttpQueryError, match="takes no parameters"):
        ask(Changes(NODE), "/v1/names", "default")
