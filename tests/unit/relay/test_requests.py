# SPDX-License-Identifier: Apache-2.0
from http import HTTPStatus

import pytest

from ebpflb.relay.requests import (
    DISCOVERY,
    ApiError,
    ListRequest,
    list_document,
    list_request,
    status_document,
)
from ebpflb.words.observe import KINDS, PATH


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("/flows", ListRequest("flows", "", {})),
        ("/namespaces/shop/flows", ListRequest("flows", "shop", {})),
        ("/namespaces/shop/rates?", ListRequest("rates", "shop", {})),
        ("/%66lows", ListRequest("flows", "", {})),
        # As the API server reads it: one part, of a namespace that there is not.
        ("/namespaces/shop%2Fbank/flows", ListRequest("flows", "shop/bank", {})),
        ("/flows?to=a%2Fb&from=&node=,a,,b,", ListRequest("flows", "", {"to": "a/b"}, ("a", "b"))),
        ("/flows?limit=5&pretty=true&timeout=1s", ListRequest("flows", "", {"limit": "5"})),
        # What `kubectl get` and other clients send for any list.
        ("/frontends?limit=500&resourceVersion=0", ListRequest("frontends", "", {})),
        ("/flows?watch=false", ListRequest("flows", "", {})),
        ("/flows?watch=1&to=b", ListRequest("flows", "", {"to": "b"}, is_watch=True)),
        ("/flows?to=%FF", ListRequest("flows", "", {"to": "\ufffd"})),
    ],
)  # fmt: skip
def test_a_list(target, found):
    assert list_request(f"{PATH}{target}") == found


@pytest.mark.parametrize(
    "target",
    [
        f"{PATH}",
        f"{PATH}/",
        f"{PATH}/flows/",
        f"{PATH}//flows",
        f"{PATH}/pods",
        f"{PATH}/flows/one",
        f"{PATH}/namespaces/shop",
        f"{PATH}/namespaces//flows",
        f"{PATH}/namespaces/shop/flows/",
        f"{PATH}/namespaces/shop/flows/one",
        f"{PATH}/namespaces/shop/pods",
        f"{PATH}/watch/flows",
        f"{PATH}/flows%3Flimit=5",
        f"{PATH}/flows#x",
        f"{PATH}x/flows",
        f"//host{PATH}/flows",
        f"http://host{PATH}/flows",
        f"/x/..{PATH}/flows",
        f"{PATH.upper()}/flows",
        "/apis/observe.ebpflb.io/v1/flows",
        "",
        "*",
        "//[",
    ],
)
def test_what_is_no_list(target):
    assert list_request(target) is None


@pytest.mark.parametrize(
    ("query", "status", "why"),
    [
        ("limit=1&limit=1", 400, "limit: may be given once"),
        ("limits=1", 400, "unknown parameter 'limits' (did you mean limit?)"),
        (
            "services-of=bank",
            400,
            "unknown parameter 'services-of' (did you mean service or since?)",
        ),
        ("namespace=bank", 400, "unknown parameter 'namespace'"),
        ("watch=1&since=5m&limit=5", 400, "limit: a watch begins now, and has no end"),
        ("watch=1&id=18-1", 400, "id: a watch begins now, and has no end"),
        ("follow=x", 400, "unknown parameter 'follow'"),
    ],
)
def test_wrong_parameters(query, status, why):
    with pytest.raises(ApiError) as caught:
        list_request(f"{PATH}/namespaces/shop/flows?{query}")
    assert caught.value.status == status
    assert str(caught.value).startswith(why)


def test_each_resource_has_its_own_parameters():
    with pytest.raises(ApiError, match=r"unknown parameter 'to' \(known: node, service\)"):
        list_request(f"{PATH}/frontends?to=x")


def test_only_flows_can_be_watched():
    with pytest.raises(ApiError, match="rates cannot be watched") as caught:
        list_request(f"{PATH}/rates?watch=true")
    assert caught.value.status == HTTPStatus.METHOD_NOT_ALLOWED


def test_requests_for_the_same_have_one_key():
    one, other = (
        list_request(f"{PATH}/namespaces/shop/flows?{query}")
        for query in ("service=a&limit=5&node=a", "node=a&limit=5&service=a&pretty=1")
    )
    assert one
    assert other
    assert one.key == other.key
    different = ["service=b&limit=5&node=a", "limit=5&node=a", "service=a&limit=5&node=b"]
    for query in different:
        found = list_request(f"{PATH}/namespaces/shop/flows?{query}")
        assert found
        assert found.key != one.key
    assert ListRequest("flows", "", {}).key != ListRequest("flows", "shop", {}).key


def test_a_list_is_as_kubernetes_has_it():
    assert list_document("flows", [{"seq": 1}], {"why": ["a"]}) == {
        "apiVersion": "observe.ebpflb.io/v1alpha1",
        "kind": "FlowList",
        "metadata": {},
        "items": [{"seq": 1}],
        "failures": {"why": ["a"]},
    }


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (400, "BadRequest"),
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "NotFound"),
        (405, "MethodNotAllowed"),
        (413, "RequestEntityTooLarge"),
        (422, "Invalid"),
        (429, "TooManyRequests"),
        (503, "ServiceUnavailable"),
        (504, "Timeout"),
        (418, ""),
    ],
)
def test_an_error_is_a_status(status, reason):
    assert status_document(ApiError(HTTPStatus(status), "why")) == {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": "why",
        "reason": reason,
        "code": status,
    }


def test_discovery_is_what_the_api_server_reads():
    version = {"groupVersion": "observe.ebpflb.io/v1alpha1", "version": "v1alpha1"}
    group = DISCOVERY["/apis/observe.ebpflb.io"]
    assert group == {
        "apiVersion": "v1",
        "kind": "APIGroup",
        "name": "observe.ebpflb.io",
        "versions": [version],
        "preferredVersion": version,
    }
    assert DISCOVERY["/apis"] == {"apiVersion": "v1", "kind": "APIGroupList", "groups": [group]}
    resources = DISCOVERY[PATH]
    assert (resources["kind"], resources["groupVersion"]) == (
        "APIResourceList",
        "observe.ebpflb.io/v1alpha1",
    )
    assert {each["name"]: each["kind"] for each in resources["resources"]} == KINDS
    assert resources["resources"][0] == {
        "name": "frontends",
        "singularName": "frontend",
        "namespaced": True,
        "kind": "Frontend",
        "verbs": ["list"],
    }
