# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from ebpflb.model.flow import Flow, FlowClient, FlowFrontend, flow_line
from tests.unit.cli.explained import DEAD, FRONTEND, answered, backend
from tests.unit.kubectl.api_server import node

CLUSTER = {**FRONTEND, "external_policy": "Cluster"}
WORKS = answered(frontend=CLUSTER, backends=[backend()])
FAILS = answered("refused", frontend=CLUSTER, why="no endpoint")
POD = "/api/v1/namespaces/default/pods/curl"
SERVICE = "/api/v1/namespaces/default/services/web"


@pytest.fixture
def three(nodes):
    nodes.add("a", "b", "c")
    for name in "abc":
        nodes.say(name, "explain", WORKS)
    nodes.objects.lists["/api/v1/nodes"] = [
        {**node(name), "status": {"addresses": [{"type": "InternalIP", "address": address}]}}
        for name, address in (("a", "192.0.2.1"), ("b", "192.0.2.2"), ("c", "192.0.2.3"))
    ]
    nodes.objects.texts[POD] = json.dumps({"spec": {"nodeName": "b"}})
    nodes.objects.texts[SERVICE] = json.dumps(
        {"spec": {"ports": [{"port": 80, "name": "http", "nodePort": 30080}]}, "status": {}}
    )
    return nodes


def asked(nodes):
    """Node -> SRC and DST."""
    return sorted(tuple(argv[-2:]) for argv in nodes.objects.executed)


def heads(text):
    return [line for line in text.splitlines() if line.startswith("On ")]


def test_a_pods_node_is_asked(three):
    text = three.run("explain", "curl", "web").stdout
    assert text.startswith("On b:\n\nworks: translated at the socket hook")
    assert asked(three) == [("default/curl", "default/web")]


def options_of(nodes, name):
    """The options of that name of each question."""
    options = [each for argv in nodes.objects.executed for each in argv if each.startswith(name)]
    return [each.partition("=")[2] for each in options]


def test_of_the_past_all_nodes_are_asked_about_the_same_moment(three):
    three.run("explain", "198.51.100.7", "192.0.2.9:80", "--at", "10m")
    (moment,) = set(options_of(three, "--at"))
    assert moment.endswith("Z")
    assert len(options_of(three, "--at")) == 3
    done = three.run("explain", "host", "web", "--at", "yesterday", status=2)
    assert "want a time" in done.output


def test_a_pod_that_is_gone_is_found_by_its_last_flow_until_then(three):
    flow = Flow(
        time="2026-11-24T03:00:00.000000000Z",
        event="end",
        verdict="forwarded",
        protocol="TCP",
        path="tc",
        seq=1,
        node="c",
        client=FlowClient(address="10.1.2.3", port=4000, pod="default/gone"),
        frontend=FlowFrontend(address="10.96.0.1", port=80),
    )
    three.say("c", "flows", flow_line(flow).decode())
    for name in "ab":
        three.say(name, "flows", "", 1)
    text = three.run("explain", "gone", "web", "--at", "2026-11-24T03:12Z").stdout
    assert heads(text) == ["On c:"]
    assert asked(three)[-1] == ("10.1.2.3", "default/web")
    assert set(options_of(three, "--until")) == {"2026-11-24T03:12:00.000000000Z"}
    three.run("explain", "gone", "web", status=3)
    three.say("c", "flows", "")
    done = three.run("explain", "gone", "web", "--at", "2026-11-24T03:12Z", status=3)
    assert "no node has kept a flow of it until then" in done.output


def test_names_without_a_namespace_are_in_that_of_n(three):
    path = "/api/v1/namespaces/shop/pods/curl"
    three.objects.texts[path] = three.objects.texts[POD]
    three.run("explain", "curl:4000", "web:80/udp", "-n", "shop")
    assert asked(three) == [("shop/curl:4000", "shop/web:80/udp")]


def test_a_client_outside_is_a_question_for_every_node(three):
    three.say("c", "explain", FAILS, 1)
    text = three.run("explain", "198.51.100.7", "192.0.2.9:80", status=1).stdout
    assert heads(text) == [
        "On a, b, c (3 nodes), whose answers differ:",
        "On c:",
        "On a, b (2 nodes):",
    ]
    assert asked(three) == [("198.51.100.7", "192.0.2.9:80")] * 3


def test_for_a_client_outside_a_service_is_its_node_port_at_each_node(three):
    three.run("explain", "198.51.100.7:5000", "web")
    places = [f"192.0.2.{number}:30080/tcp" for number in (1, 2, 3)]
    assert asked(three) == [("198.51.100.7:5000", place) for place in places]


def test_for_a_client_outside_a_service_is_its_addresses_for_clients_outside(three):
    three.objects.texts[SERVICE] = json.dumps(
        {
            "spec": {"ports": [{"port": 53, "protocol": "UDP"}], "externalIPs": ["fd00::9"]},
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.5"}, {"hostname": "x"}]}},
        }
    )
    three.run("explain", "198.51.100.7", "web")
    assert asked(three) == [("198.51.100.7", "203.0.113.5:53/udp")] * 3
    three.objects.executed.clear()
    three.run("explain", "2001:db8::1", "web")
    assert asked(three) == [("2001:db8::1", "[fd00::9]:53/udp")] * 3


def test_behind_a_load_balancer_that_connects_by_itself_it_is_the_node_port(three):
    three.objects.texts[SERVICE] = json.dumps(
        {
            "spec": {"ports": [{"port": 80, "nodePort": 30080}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.5", "ipMode": "Proxy"}]}},
        }
    )
    three.run("explain", "198.51.100.7", "web")
    assert asked(three)[0] == ("198.51.100.7", "192.0.2.1:30080/tcp")


def test_a_service_without_an_address_for_clients_outside_is_asked_for_by_name(three):
    three.objects.texts[SERVICE] = json.dumps({"spec": {"ports": [{"port": 80}]}})
    three.run("explain", "198.51.100.7", "web")
    assert asked(three) == [("198.51.100.7", "default/web")] * 3


def test_a_port_among_several_has_to_be_said(three):
    ports = [{"port": 80, "name": "http"}, {"port": 443, "name": "https", "nodePort": 30443}]
    three.objects.texts[SERVICE] = json.dumps({"spec": {"ports": ports}})
    done = three.run("explain", "198.51.100.7", "web", status=3)
    assert "Use default/web:PORT, one of http, https" in done.output
    three.run("explain", "198.51.100.7", "web:https")
    assert asked(three)[0][1] == "192.0.2.1:30443/tcp"


@pytest.mark.parametrize("address", ["10.1.0.9", "192.0.2.2"])
def test_an_address_of_a_pod_or_a_node_is_a_question_for_that_node(three, address):
    found = {"spec": {"nodeName": "b"}, "status": {"phase": "Running", "podIP": address}}
    three.objects.selected = {f"status.podIP={address}": [found] if "10." in address else []}
    three.run("explain", address, "web")
    assert asked(three) == [(address, "default/web")]


def test_the_host_is_each_node(three):
    assert three.run("explain", "host", "web").stdout.startswith("On a, b, c (3 nodes):")


def test_nodes_with_different_answers_are_a_matrix_of_nodes_and_endpoints(three):
    mine, other = backend("10.2.0.1", chance=0.5), backend("10.3.0.1", chance=0.5, trouble=DEAD)
    three.say("a", "explain", answered(backends=[{**mine, "chance": 1.0}]))
    three.say("b", "explain", answered(backends=[mine, other]))
    three.say("c", "explain", FAILS, 1)
    text = three.run("explain", "host", "web", status=1).stdout
    assert text.splitlines()[:6] == [
        "On a, b, c (3 nodes), whose answers differ:",
        "",
        "NODE  OUTCOME            10.2.0.1:8080  10.3.0.1:8080",
        "c     fails: refused     -              -",
        "b     works for 1 of 2   50%            50% !",
        "a     works: translated  100%           -",
    ]
    assert heads(text)[1:] == ["On c:", "On b:", "On a:"]


def test_a_nodes_own_source_address_is_never_said_of_another(three):
    for name, address in (("a", "192.0.2.1"), ("b", "192.0.2.2"), ("c", "192.0.2.2")):
        seen = backend("10.2.0.1", masquerade=address)
        three.say(name, "explain", answered(backends=[seen]))
    text = three.run("explain", "host", "web").stdout
    assert text.splitlines()[3].startswith("a, b, c  works: translated")
    assert heads(text)[1:] == ["On b, c (2 nodes):"]
    assert text.endswith("\n\na: other details, such as addresses; -o wide shows them\n")
    text = three.run("explain", "host", "web", "-o", "wide").stdout
    assert set(heads(text)[1:]) == {"On a:", "On b, c (2 nodes):"}
    found = json.loads(three.run("explain", "host", "web", "-o", "json").stdout)
    assert [each["nodes"] for each in found] == [["b", "c"], ["a"]]


def test_a_nodes_own_failed_connection_is_never_said_of_another(three):
    failed = [backend("10.2.0.1", chance=0.5), backend("10.2.0.2", chance=0.5, trouble=DEAD)]
    three.say("b", "explain", answered(frontend=CLUSTER, backends=failed))
    fine = [{**each, "trouble": ""} for each in failed]
    for name in "ac":
        three.say(name, "explain", answered(frontend=CLUSTER, backends=fine))
    text = three.run("explain", "host", "web", status=5).stdout
    assert heads(text)[1:] == ["On b:", "On a, c (2 nodes):"]
    own, others = text.split("On a, c (2 nodes):")
    assert DEAD in own
    assert DEAD not in others
    found = json.loads(three.run("explain", "host", "web", "-o", "json", status=5).stdout)
    assert [each["outcome"] for each in found] == ["partly", "works"]


def test_endpoints_are_not_left_out_under_policy_local(three):
    three.say("b", "explain", answered(backends=[backend("10.3.0.1")]))
    for name in "ac":
        three.say(name, "explain", answered(backends=[backend("10.2.0.1")]))
    found = json.loads(three.run("explain", "host", "web", "-o", "json").stdout)
    assert [each["nodes"] for each in found] == [["a", "c"], ["b"]]


def test_nodes_that_choose_among_other_endpoints_are_distinguished(three):
    three.say("b", "explain", answered(frontend=CLUSTER, backends=[backend("10.3.0.1")]))
    found = json.loads(three.run("explain", "host", "web", "-o", "json").stdout)
    assert [each["nodes"] for each in found] == [["a", "c"], ["b"]]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({**WORKS, "agree": False}, 3),
        (FAILS, 1),
        (answered("passes", frontend=None), 4),
        ("nonsense", 3),
        ({**WORKS, "kernel": {}}, 3),
        ({**WORKS, "client": {}}, 3),
        ({**WORKS, "model": {"unasked": "", "left_out": {"a": "b"}}}, 3),
        ({**WORKS, "kernel": {**WORKS["kernel"], "place": []}}, 0),
    ],
)
def test_the_exit_status_is_the_gravest(three, said, status):
    three.say("b", "explain", said, 1)
    three.run("explain", "curl", "web", status=status)


def test_a_pod_that_is_not_there_or_has_no_node_could_not_be_reported(three):
    assert "not found" in three.run("explain", "nobody", "web", status=3).output
    three.objects.texts[POD] = json.dumps({"spec": {}})
    assert "is not scheduled yet" in three.run("explain", "curl", "web", status=3).output
    three.objects.texts[POD] = json.dumps({"spec": {"nodeName": "z"}})
    done = three.run("explain", "curl", "web", status=3)
    assert "default/curl is on node z, where no agent runs" in done.output


@pytest.mark.parametrize("spec", [{}, {"ports": []}])
def test_a_service_without_ports_has_no_answer(three, spec):
    three.objects.texts[SERVICE] = json.dumps({"spec": spec})
    done = three.run("explain", "198.51.100.7", "web", status=3)
    assert done.stderr == "Error: Service default/web has no ports\n"


def test_an_agent_that_cannot_answer_is_named(three):
    three.fail("b", "explain", "Error: no Service default/wep (did you mean default/web?)")
    done = three.run("explain", "curl", "wep", status=3)
    assert done.stderr == "b: no Service default/wep (did you mean default/web?)\n"


def test_a_wrong_source_is_a_wrong_command_line(three):
    assert "want an address" in three.run("explain", "1.2.3", "web", status=2).output
