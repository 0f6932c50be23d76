# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from ebpflb.cli.digests.frontends import FrontendOfNode
from ebpflb.kubectl import program
from tests.unit.cli.invoked import check_narrow, interrupt_after
from tests.unit.kubectl.answers import frontend, short_services


@pytest.fixture
def three(nodes):
    nodes.add("a", "b", "c")
    for node in "abc":
        say(nodes, node, frontend("10.1.0.1", "10.1.0.2"))
    return nodes


def say(nodes, node, *frontends, options=""):
    """What a node has, if it is asked with these options."""
    nodes.say(node, f"services --short{options}", short_services(*frontends))
    nodes.say(node, f"services -o json{options}", frontends)


def asked_whole(nodes):
    """For each time that a node was asked for more than digests: for which."""
    asked = [argv for argv in nodes.objects.executed if "-o" in argv]
    return [[each for each in argv if each.startswith("--digest")] for argv in asked]


def rows(done):
    return [re.split(r"\s{2,}", line) for line in done.stdout.splitlines()[1:]]


def test_nodes_that_agree_make_one_line_with_sums(three):
    assert rows(three.run("services")) == [
        [
            *("TCP", "10.96.0.10:80", "ClusterIP", "default/web:http", "Cluster"),
            *("2", "6", "12", "3", "0"),
        ]
    ]


def test_where_a_node_differs_it_is_named(three):
    say(three, "a")
    say(three, "c", frontend("10.1.0.2", "10.1.0.3", external_policy="Local"))
    three.add("d")
    say(three, "d", frontend("10.1.0.1", "10.1.0.2"))
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


def test_settings_are_what_the_nodes_say(three):
    """Numbers, truth values and lists too; and one that no agent says does no harm."""
    ranges = ["192.0.2.0/24", "2001:db8::/32"]
    kept = {"dsr": True, "affinity_timeout": 10800, "source_ranges": ranges}
    for node in "ab":
        say(three, node, frontend("10.1.0.1", **kept))
    say(three, "c", frontend("10.1.0.1", **kept | {"source_ranges": [], "scheduler": {"a": []}}))
    (found,) = json.loads(three.run("services", "-o", "json", status=1).stdout)
    assert {key: found[key] for key in kept} == kept
    assert "source_ranges is none, not 192.0.2.0/24, 2001:db8::/32" in found["differences"]


def test_backends_of_internal_policy_local_may_differ(three):
    for number, node in enumerate("abc"):
        here = frontend(f"10.{number}.0.1", internal_policy="Local")
        say(three, node, here)
    assert rows(three.run("services"))[0][5] == "3"


def test_external_policy_local_leaves_each_node_its_own_for_others(three):
    own = {"backends": [{"address": "10.1.0.1", "port": 8080}], "if_empty": "drop"}
    fields = {"type": "NodePort", "address": "0.0.0.0", "external_policy": "Local"}
    for node in "abc":
        say(three, node, frontend("10.1.0.1", "10.1.0.2", **fields))
    say(three, "b", frontend("10.1.0.1", "10.1.0.2", **fields, others=own))
    (found,) = json.loads(three.run("services", "-o", "json").stdout)
    assert (found["missing_on"], found["differences"]) == ([], {})


def local(*backends, if_empty="drop", **more):
    """A NodePort under external policy Local, on a node with these endpoints."""
    own = [{"address": each, "port": 8080} for each in backends]
    return frontend(
        *("10.1.0.1", "10.1.0.2"),
        type="NodePort",
        address="0.0.0.0",
        external_policy="Local",
        others={"backends": own, "if_empty": if_empty},
        **more,
    )


def test_under_external_policy_local_it_is_said_which_nodes_serve_clients_outside(three):
    for node, here in (("a", ["10.1.0.1"]), ("b", []), ("c", ["10.1.0.2"])):
        say(three, node, local(*here))
    said = "  clients outside: served by a, c; dropped by b"
    assert three.run("services").stdout.splitlines()[2:] == [said]
    assert three.run("services", "-o", "wide").stdout.splitlines()[-1] == said
    (found,) = json.loads(three.run("services", "-o", "json").stdout)
    assert found["outside"] == {"served": ["a", "c"], "dropped": ["b"]}


def test_who_serves_clients_outside_is_known_of_idle_nodes_too(three):
    idle = {"connections": 0, "refused": 0}
    for node in "abc":
        say(three, node, local(if_empty="refuse", **idle))
    assert three.run("services").stdout.splitlines()[2:] == [
        "  clients outside: refused by a, b, c"
    ]


@pytest.mark.parametrize("policy", [{"type": "ClusterIP"}, {"external_policy": "Cluster"}])
def test_clients_outside_have_a_line_only_where_policy_local_applies(three, policy):
    for node in "abc":
        say(three, node, {**local(), **policy})
    done = three.run("services")
    assert "outside" not in done.stdout
    (found,) = json.loads(three.run("services", "-o", "json").stdout)
    assert found["outside"] == {}


def test_a_node_may_say_nothing_of_clients_outside(three):
    for node in "abc":
        say(three, node, local("10.1.0.1"))
    (digest,) = short_services(local())
    three.say("b", "services --short", {digest: [2, 1, 0, 0]})
    assert three.run("services").stdout.splitlines()[2] == "  clients outside: served by a, c"


def test_a_list_is_of_one_namespace_which_agents_choose_or_of_all(three):
    here, shop = frontend("10.1.0.1"), frontend(address="10.96.0.11", namespace="shop")
    for node in "abc":
        say(three, node, here, options=" --namespace=default")
        say(three, node, shop, options=" --namespace=shop")
        say(three, node, here, shop)
    assert [row[3] for row in rows(three.run("services"))] == ["default/web:http"]
    assert [row[3] for row in rows(three.run("services", "-n", "shop"))] == ["shop/web:http"]
    assert len(rows(three.run("services", "-A"))) == 2


def test_one_service_is_asked_for_by_name(three):
    three.run("services", "-n", "shop", "--service", "web")
    assert all("--service=shop/web" in argv for argv in three.objects.executed)


def test_the_wide_table_counts_the_nodes_of_each_backend(three):
    say(three, "c", frontend("10.1.0.1"))
    done = three.run("services", "-o", "wide", status=1)
    assert [line.strip() for line in done.stdout.splitlines()[2:4]] == [
        "-> 10.1.0.1:8080 on 3 nodes",
        "-> 10.1.0.2:8080 on 2 nodes",
    ]


@pytest.mark.parametrize("nonsense", [[1], {"00": 7}, {"00": ["many", 0, 0]}, "[" * 10_000])
def test_nonsense_is_one_line(three, nonsense):
    three.say("b", "services --short", nonsense)
    done = three.run("services", status=1)
    assert re.fullmatch(r"b: an answer that this version cannot read \(.*\)\n", done.stderr)
    assert [row[6] for row in rows(done)] == ["4"]


def test_what_all_have_alike_is_told_by_one_node(three):
    three.run("services")
    assert asked_whole(three) == [[]]


def test_another_form_is_asked_for_alone(three):
    say(three, "c", frontend("10.1.0.1", "10.1.0.2"), frontend(address="10.96.0.11"))
    assert len(rows(three.run("services", status=1))) == 3
    digest = FrontendOfNode.of(frontend(address="10.96.0.11")).digest
    assert asked_whole(three) == [[], [f"--digest={digest}"]]


def test_who_has_very_many_other_forms_is_asked_for_all(three):
    many = [frontend("10.1.0.1", address=f"10.96.1.{each}") for each in range(101)]
    for node in "bc":
        say(three, node, *many)
    assert len(three.run("services", "-o", "jsonl", status=1).stdout.splitlines()) == 102
    assert asked_whole(three) == [[], []]


def test_counts_are_told_where_there_are_any_and_of_each_form(three):
    idle = {"connections": 0, "failed": 0, "refused": 0}
    say(three, "a", frontend("10.1.0.1", "10.1.0.2", **idle))
    say(three, "b", frontend("10.1.0.1", **idle))
    assert rows(three.run("services", status=1))[0][6:] == ["2", "4", "1", "0"]


def test_a_node_that_answers_in_short_only_is_left_out_and_another_one_asked(three):
    for node in "bc":
        say(three, node, frontend("10.1.0.3"))
    three.fail("b", "services -o json", "Error: out of memory")
    done = three.run("services", "--parallel=1", status=1)
    assert done.stderr == "b: out of memory\n"
    (found,) = json.loads(three.run("services", "--parallel=1", "-o", "json", status=1).stdout)
    assert found["backends"] == dict.fromkeys(
        ("10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"), 1
    )


def test_without_the_first_node_another_one_is_asked_for_all(three):
    three.fail("a", "services", "Error: out of memory")
    three.fail("a", "services -o json", "Error: out of memory")
    done = three.run("services", "--parallel=1", status=1)
    assert done.stderr == "a: out of memory\n"
    assert rows(done)[0][5:] == ["2", "4", "8", "2", "0"]


def test_a_form_that_vanishes_in_between_is_asked_for_again(three):
    def change_and_answer(pod, argv):
        if any(each.startswith("--digest") for each in argv):
            for node in "abc":
                say(three, node, frontend("10.1.0.9"))
        return three.answer(pod, argv)

    say(three, "a", frontend("10.1.0.9"))
    three.objects.command = change_and_answer
    (found,) = json.loads(three.run("services", "-o", "json").stdout)
    assert found["backends"] == {"10.1.0.9:8080": 3}


def test_what_a_node_never_explains_is_told_and_not_called_missing(three):
    other = frontend("10.1.0.1", address="10.96.0.11")
    for node in "ac":
        say(three, node, frontend("10.1.0.1", "10.1.0.2"), other)
    unknown = {"0123456789abcdef": 0, **short_services(frontend("10.1.0.1", "10.1.0.2"))}
    three.say("b", "services --short", unknown)
    done = three.run("services", "--parallel=1", status=1)
    assert done.stderr.startswith("b: changes faster than it can be read")
    assert len(rows(done)) == 2


def test_what_a_node_tells_of_the_form_of_others_must_have_its_digest(three):
    for node in "bc":
        say(three, node, frontend("10.1.0.3"))
    three.say("b", "services -o json", [frontend("10.6.6.6")])
    done = three.run("services", "--parallel=1", "-o", "json", status=1)
    (found,) = json.loads(done.stdout)
    assert found["backends"] == {"10.1.0.1:8080": 1, "10.1.0.2:8080": 1, "10.1.0.3:8080": 2}
    assert not done.stderr


def test_an_agent_of_another_version_is_one_line(three):
    three.fail("b", "services --short", "Error: No such option: --short", 2)
    done = three.run("services", status=1)
    assert done.stderr == "b: an agent of another version: No such option: --short\n"
    assert [row[6] for row in rows(done)] == ["4"]


def test_it_is_asked_again_until_an_interrupt_and_for_details_once(three, monkeypatch):
    interrupt_after(2, monkeypatch, between=lambda: say(three, "c"))
    done = three.run("services", "-w", "-o", "jsonl")
    missing = [json.loads(line)["missing_on"] for line in done.stdout.splitlines()]
    assert missing == [[], ["c"]]
    assert asked_whole(three) == [[]]


def test_on_a_narrow_terminal_all_of_it_is_shown(three, screen):
    say(three, "c", frontend("10.1.0.2", "10.1.0.3", "10.1.0.4", external_policy="Local"))
    check_narrow(screen, program, "services", "--kubeconfig", str(three.kubeconfig))
