# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from tests.unit.kubectl.answers import frontend


@pytest.fixture
def three(nodes):
    nodes.add("a", "b", "c")
    for node in "abc":
        nodes.say(node, "maps dump", [frontend("10.1.0.1", "10.1.0.2")])
    return nodes


def rows(done):
    return [re.split(r"\s{2,}", line) for line in done.stdout.splitlines()[1:]]


def test_nodes_that_agree_make_one_line_with_sums(three):
    assert rows(three.run("services")) == [
        [
            *("TCP", "10.96.0.10:80", "ClusterIP", "default/web:http", "Cluster"),
            *("2", "6", "3", "0"),
        ]
    ]


def test_where_a_node_differs_it_is_named(three):
    three.say("a", "maps dump", [])
    three.say("c", "maps dump", [frontend("10.1.0.2", "10.1.0.3", external_policy="Local")])
    three.add("d")
    three.say("d", "maps dump", [frontend("10.1.0.1", "10.1.0.2")])
    done = three.run("services", status=1)
    assert [line.strip() for line in done.stdout.splitlines()[2:]] == [
        "!! missing on a",
        "!! c: also has 10.1.0.3:8080",
        "!! c: external_policy is Local, not Cluster",
        "!! c: lacks 10.1.0.1:8080",
    ]
    (found,) = json.loads(three.run("services", "-o", "json", status=1).stdout)
    assert found["missing_on"] == ["a"]
    assert found["backends"] == {"10.1.0.1:8080": 2, "10.1.0.2:8080": 3, "10.1.0.3:8080": 1}


def test_backends_of_internal_policy_local_may_differ(three):
    for number, node in enumerate("abc"):
        here = frontend(f"10.{number}.0.1", internal_policy="Local")
        three.say(node, "maps dump", [here])
    assert rows(three.run("services"))[0][5] == "3"


def test_external_policy_local_leaves_each_node_its_own_for_others(three):
    own = {"backends": [{"address": "10.1.0.1", "port": 8080}], "if_empty": "drop"}
    fields = {"type": "NodePort", "address": "0.0.0.0", "external_policy": "Local"}
    for node in "abc":
        three.say(node, "maps dump", [frontend("10.1.0.1", "10.1.0.2", **fields)])
    three.say("b", "maps dump", [frontend("10.1.0.1", "10.1.0.2", **fields, others=own)])
    assert len(rows(three.run("services"))) == 1


def test_a_list_is_of_one_namespace_or_of_all(three):
    both = [frontend("10.1.0.1"), frontend(address="10.96.0.11", namespace="shop")]
    for node in "abc":
        three.say(node, "maps dump", both)
    assert [row[3] for row in rows(three.run("services"))] == ["default/web:http"]
    assert [row[3] for row in rows(three.run("services", "-n", "shop"))] == ["shop/web:http"]
    assert len(rows(three.run("services", "-A"))) == 2


def test_one_service_is_asked_for_by_name(three):
    three.run("services", "-n", "shop", "--service", "web")
    assert three.objects.executed[-1][-1] == "--service=shop/web"


def test_the_wide_table_counts_the_nodes_of_each_backend(three):
    three.say("c", "maps dump", [frontend("10.1.0.1")])
    done = three.run("services", "-o", "wide", status=1)
    assert [line.strip() for line in done.stdout.splitlines()[2:4]] == [
        "-> 10.1.0.1:8080 on 3 nodes",
        "-> 10.1.0.2:8080 on 2 nodes",
    ]


def test_nonsense_is_one_line(three):
    three.say("b", "maps dump", [{"protocol": "TCP"}])
    done = three.run("services", status=1)
    assert re.fullmatch(r"b: an answer that this version cannot read \(KeyError.*\)\n", done.stderr)
