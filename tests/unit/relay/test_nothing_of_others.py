# SPDX-License-Identifier: Apache-2.0
"""Within a namespace, no answer tells anything of another, however it is asked."""

import json
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ebpflb.kubectl.asking import AgentAnswer
from ebpflb.words.observe import CONNECTIONS, EXPLANATIONS, FLOWS, FRONTENDS, KINDS, RATES
from tests.unit.kubectl.api_server import DAEMON_SETS, daemon_set
from tests.unit.relay.cluster import (
    ADMIN,
    HIDDEN,
    NODES,
    OUTSIDE,
    PODS,
    SHOP_IP,
    TELLER,
    TELLER_IP,
    TELLER_IPV6,
    VAULT,
    VAULT_IP,
    WEB_IP,
    add_pod,
    host_pod,
)

# What there is in `bank`, and what there is not.
NOTHING_LIKE = {
    TELLER: "nobody-00",
    VAULT: "empty-00",
    TELLER_IP: "10.244.7.99",
    TELLER_IPV6: "fd00:10::99",
    VAULT_IP: "10.96.0.99",
}
PODS_OF_BANK = (f"bank/{TELLER}", TELLER_IP, TELLER_IPV6, "FD00:0010:0::0077")
SERVICES_OF_BANK = (f"bank/{VAULT}", f"{VAULT}.bank.svc", f"{VAULT}.bank.svc.cluster.local")
OWN = ("shop/curl", "curl", SHOP_IP, OUTSIDE, "web", "shop/web", "shop/nothing", "nonsense/")
OF_NODES = (*NODES["a"], "::ffff:203.0.113.2", "host", "127.0.0.1", "203.0.113.1:30080")
ENDS = st.sampled_from([*PODS_OF_BANK, *SERVICES_OF_BANK, *OWN, *OF_NODES, ""])
TARGETS = st.sampled_from(
    [
        *SERVICES_OF_BANK,
        *(f"{VAULT_IP}:80", f"{VAULT_IP}:81", f"{WEB_IP}:80", "203.0.113.1:30080"),
        *(*OWN, "web:http", "bank/..", f"{TELLER_IP}:80", f"[{TELLER_IPV6}]:80/udp"),
    ]
)
SERVICES = st.sampled_from(["web", "shop/web", *SERVICES_OF_BANK, "/", "shop/", "shop/../bank"])
NODE = st.sampled_from(["a", "b", "a,b", "c", ""])
FILTERS = {
    FRONTENDS: {"service": SERVICES, "node": NODE},
    RATES: {
        "interval": st.sampled_from(["0.1", "11", "x"]),
        "at": st.sampled_from(["2026-11-24T03:10Z", "x"]),
        "window": st.sampled_from(["5m", "x"]),
        "node": NODE,
    },
    FLOWS: {
        "from": ENDS,
        "to": ENDS,
        "service": SERVICES,
        "node": NODE,
        "limit": st.sampled_from(["1", "1000", "20000", "20001"]),
        "verdict": st.sampled_from(["forwarded", "x"]),
    },
    CONNECTIONS: {"from": ENDS, "service": SERVICES, "node": NODE, "older": st.just("1s")},
    EXPLANATIONS: {"from": ENDS, "to": TARGETS, "node": NODE},
}


def asked(resource, filters, namespace="shop"):
    return f"namespaces/{namespace}/{resource}?{urlencode(filters)}"


@st.composite
def requests(draw):
    """The resource and its parameters."""
    resource = draw(st.sampled_from(sorted(KINDS)))
    required = {key: FILTERS[resource][key] for key in ("from", "to") if resource == EXPLANATIONS}
    optional = {key: each for key, each in FILTERS[resource].items() if key not in required}
    return resource, draw(st.fixed_dictionaries(required, optional=optional))


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests())
def test_whatever_is_asked_the_answer_is_that_of_a_cluster_without_it(relayed, request_of):
    resource, filters = request_of
    status, body = relayed.ask(asked(resource, filters))
    if status != 200:
        # It may quote what was asked, maybe in another form.
        for name in (f"bank/{VAULT}", *(filters.get(key, "") for key in ("from", "to", "service"))):
            body = body.replace(name, "") if name else body
    assert not [each for each in HIDDEN if each in body]
    others = {key: nothing_like(value) for key, value in filters.items()}
    asked_status, asked_body = relayed.ask(asked(resource, filters))
    other_status, other_body = relayed.ask(asked(resource, others))
    assert (asked_status, ordered(nothing_like(asked_body))) == (other_status, ordered(other_body))


def ordered(body):
    """Nodes answer in any order."""
    document = json.loads(body)
    return {**document, "items": sorted(map(str, document.get("items", ())))}


def nothing_like(text):
    text = text.replace("FD00:0010:0::0077", "FD00:0010:0::0099")
    for each, other in NOTHING_LIKE.items():
        text = text.replace(each, other)
    return text


@pytest.mark.parametrize(
    "resource", [FRONTENDS, RATES, f"{RATES}?at=2026-11-24T03:10Z", FLOWS, CONNECTIONS]
)
def test_what_is_of_the_namespace_is_shown(relayed, resource):
    found = relayed.found(f"namespaces/shop/{resource}")
    assert found["items"]
    body = str(found)
    assert "shop" in body
    assert not [each for each in HIDDEN if each in body]


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        (FRONTENDS, (VAULT, VAULT_IP, TELLER_IP, NODES["b"][0], f"[{NODES['b'][1]}]")),
        (RATES, (VAULT, f"bank/{TELLER}", TELLER_IP, NODES["b"][0])),
        (FLOWS, (VAULT, f"bank/{TELLER}", TELLER_IP, TELLER_IPV6, *NODES["a"])),
        (CONNECTIONS, (VAULT, f"bank/{TELLER}", TELLER_IP, TELLER_IPV6, *NODES["b"])),
        (f"explanations?from={TELLER_IP}&to=bank/{VAULT}", (VAULT, TELLER_IP, *NODES["a"])),
        (f"explanations?from=bank/{TELLER}&to=bank/x", (f"(did you mean bank/{VAULT}?)",)),
    ],
)
def test_of_all_namespaces_all_is_shown(relayed, what, shown):
    status, body = relayed.ask(what, ADMIN)
    assert status == 200
    assert [each for each in shown if each not in body] == []
    if "?" not in what and what in (FLOWS, CONNECTIONS):
        of_agents = [len(relayed.agents.say(*each).stdout.splitlines()) for each in again(relayed)]
        assert len(relayed.found(what, ADMIN)["items"]) == sum(of_agents)
        assert f"[{NODES['a'][0]}]:9" in body or f"did you mean bank/{TELLER}" in body


def again(relayed):
    agents = relayed.cluster.agents.get()
    question = relayed.agents.asked[0][1]
    return [(agent, question) for agent in agents]


def test_who_may_list_pods_and_nodes_sees_them_within_the_namespace(relayed):
    relayed.allow("jane bank", "jane nodes")
    body = str(relayed.found("namespaces/shop/flows")["items"])
    assert f"bank/{TELLER}" in body
    assert NODES["a"][0] in body
    # Still of Services of the namespace alone.
    assert VAULT not in body
    assert relayed.found(f"namespaces/shop/explanations?from=bank/{TELLER}&to=web")["items"]
    assert relayed.found("namespaces/shop/explanations?from=host&to=web")["items"]
    found = relayed.found(f"namespaces/shop/explanations?from={TELLER_IP}&to=web")
    assert NODES["a"][0] in str(found)


def test_a_finished_pods_address_is_not_that_of_its_namespace(relayed):
    # By now it is that of a pod in `bank`, which comes second.
    why = relayed.refused(f"namespaces/shop/explanations?from={TELLER_IP}&to=web", 403)
    assert why.startswith(f"{TELLER_IP} is or may be a node, or a pod of a namespace")


@pytest.mark.parametrize("source", ["10.244.7.7", "10.244.7.8", "fd00:10::77", "fd00:10::78"])
def test_an_address_of_pods_may_be_anothers_whether_or_not_a_pod_has_it(relayed, source):
    assert relayed.refused(f"namespaces/shop/explanations?from={source}&to=web", 403)
    relayed.allow("jane ", "jane bank")
    assert relayed.ask(f"namespaces/shop/explanations?from={source}&to=web")[0] == 200


@pytest.mark.parametrize(
    "source", ["host", "host:80", "203.0.113.1", "fd00:1:0::a1", "127.0.0.1", "::1", "0.0.0.0"]
)
def test_a_node_is_explained_to_who_may_list_nodes(relayed, source):
    what = f"namespaces/shop/explanations?from={source}&to=web"
    assert "is or may be a node" in relayed.refused(what, 403)
    relayed.allow("jane nodes")
    assert relayed.ask(what)[0] == 200


def test_an_address_that_only_pods_in_a_nodes_network_have_is_a_nodes(relayed):
    add_pod(relayed.objects, host_pod("shop", "own", "198.51.100.9"))
    what = "namespaces/shop/explanations?from=198.51.100.9&to=web"
    assert relayed.refused(what, 403)
    relayed.allow("jane nodes")
    assert relayed.ask(what)[0] == 200


def test_the_pod_with_an_address_is_explained_to_who_may_list_it(relayed):
    found = relayed.found(f"namespaces/shop/explanations?from={SHOP_IP}&to=web")
    assert [each["nodes"] for each in found["items"]] == [["a"]]


def test_addresses_of_nodes_that_their_objects_do_not_have_are_not_told(relayed):
    body = str(relayed.found("namespaces/shop/explanations?from=curl&to=web"))
    assert "203.0.113.99" not in body
    assert "'masquerade': 'a node'" in body


def test_what_the_model_wants_for_another_is_not_told(relayed):
    (found,) = relayed.found("namespaces/shop/explanations?from=curl&to=web")["items"]
    answer = found["answer"]
    assert (answer["model"]["frontend"], answer["differences"], answer["agree"]) == (None, [], None)
    assert answer["model"]["backup"] == ""


def test_hints_of_agents_are_left_out_and_their_failures_stay(relayed):
    found = relayed.found("namespaces/shop/flows")["failures"]
    assert found == {
        "unknown pod 'shop/tell'": ["a"],
        "[a node]:9 and a node know no 'another namespace'": ["b"],
    }
    found = relayed.found("namespaces/shop/explanations?from=curl&to=wob")
    assert found["failures"] == {"no Service shop/wob": ["a"]}


def test_failures_that_read_the_same_without_hints_are_one(relayed):
    relayed.agents.say = lambda agent, _: AgentAnswer(
        agent, None, error=f"unknown pod 'shop/x' (did you mean bank/{agent.node}?)"
    )
    found = relayed.found("namespaces/shop/connections")["failures"]
    assert found == {"unknown pod 'shop/x'": ["a", "b"]}


@pytest.mark.parametrize("resource", [FLOWS, CONNECTIONS])
def test_a_pod_of_another_namespace_is_not_even_asked_for(relayed, resource):
    found = relayed.found(f"namespaces/shop/{resource}?from=bank/{TELLER}")
    assert (found["items"], found["failures"], relayed.agents.asked) == ([], {}, [])
    relayed.allow("jane bank")
    assert relayed.found(f"namespaces/shop/{resource}?from=bank/{TELLER}")["items"]


@pytest.mark.parametrize("service", [f"bank/{VAULT}", "bank/nothing", "shop-test/web"])
@pytest.mark.parametrize("resource", [FRONTENDS, FLOWS, CONNECTIONS])
def test_a_service_of_another_namespace_is_refused(relayed, resource, service):
    why = relayed.refused(f"namespaces/shop/{resource}?service={service}", 400)
    namespace = service.partition("/")[0]
    assert why == f"the Service is in namespace {namespace}: ask there, and not in shop"
    assert not relayed.agents.asked


@pytest.mark.parametrize(
    "service", ["shop/", "/web", "/", "shop/web/x", "shop/../bank", "shop/..", "Shop/web", "a b"]
)
def test_the_name_of_a_service_has_one_form(relayed, service):
    what = f"namespaces/shop/flows?service={quote(service)}"
    assert relayed.refused(what, 400) == f"service: {service!r}: want NAMESPACE/NAME"


@pytest.mark.parametrize("target", [f"bank/{VAULT}", f"{VAULT}.bank.svc:80", "nothing.bank.svc"])
def test_a_service_of_another_namespace_is_not_explained(relayed, target):
    why = relayed.refused(f"namespaces/shop/explanations?from=curl&to={target}", 403)
    assert why.endswith("is in another namespace than shop: ask there")
    assert not relayed.agents.asked


@pytest.mark.parametrize("target", [f"{VAULT_IP}:80", f"{TELLER_IP}:80", f"{OUTSIDE}:80"])
def test_an_address_of_anothers_service_is_as_one_of_none(relayed, target):
    why = relayed.refused(f"namespaces/shop/explanations?from=curl&to={target}", 403)
    assert why == "no Service of namespace shop has this address and port"


def test_where_there_are_agents_is_not_told(relayed):
    two = [daemon_set(), daemon_set("bank")]
    relayed.objects.lists[DAEMON_SETS] = two
    assert "bank" not in relayed.refused("namespaces/shop/flows", 503)
    assert "namespace: bank, kube-system" in relayed.refused("flows", 503, ADMIN)


def test_while_rights_are_unknown_no_address_of_the_api_server_is_told(relayed):
    relayed.objects.lists.pop("/api/v1/nodes")
    why = relayed.refused("namespaces/shop/flows", 503)
    assert why == "the API server does not tell what you may see: try again"


def test_a_nodes_address_in_an_error_of_the_api_server_is_not_told(relayed):
    path = "/api/v1/namespaces/shop/pods/curl"
    relayed.objects.forbidden[path] = f"x is forbidden: ask {NODES['a'][0]}:6443 (of bank/x)"
    why = relayed.refused("namespaces/shop/explanations?from=curl&to=web", 422)
    assert why == "RBAC forbids it: ask a node:6443"


def test_a_list_of_nodes_is_that_of_the_agents(relayed):
    assert {each["node"] for each in relayed.found("namespaces/shop/flows?node=b")["items"]} == {
        "b"
    }
    assert relayed.refused("namespaces/shop/flows?node=c,a,d", 400) == "node c, d: not found"
    assert {node for node, _ in relayed.agents.asked} == {"b"}
    relayed.objects.lists[PODS] = []
