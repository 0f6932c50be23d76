# SPDX-License-Identifier: Apache-2.0
import json
import re
import zlib
from base64 import b64encode

import msgspec
import pytest

from ebpflb.cli import INTERRUPTED
from ebpflb.kubectl import program
from ebpflb.model.compact import compact
from tests.unit.cli.invoked import check_narrow, interrupt_after
from tests.unit.kubectl.answers import compact_services, frontend


@pytest.fixture
def three(nodes):
    nodes.add("a", "b", "c")
    for node in "abc":
        say(nodes, node, frontend("10.1.0.1", "10.1.0.2"))
    return nodes


def say(nodes, node, *frontends, options=" --compact"):
    """What a node has, if it is asked with these options."""
    nodes.say(node, f"services{options}", compact_services(*frontends))


def form_of(row):
    return msgspec.json.decode(row.form)


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
    ranges = ("192.0.2.0/24", "2001:db8::/32")
    kept = {"dsr": True, "affinity_timeout": 10800, "source_ranges": ranges}
    for node in "ab":
        say(three, node, frontend("10.1.0.1", **kept))
    say(three, "c", frontend("10.1.0.1", **kept | {"source_ranges": ()}))
    (found,) = json.loads(three.run("services", "-o", "json", status=1).stdout)
    assert {key: found[key] for key in kept} == kept | {"source_ranges": list(ranges)}
    assert "source_ranges is none, not 192.0.2.0/24, 2001:db8::/32" in found["differences"]


def test_the_policy_says_that_a_service_uses_its_backup(three):
    for node in "abc":
        say(three, node, frontend("10.1.0.1", backup="only"))
    assert rows(three.run("services"))[0][4] == "Cluster, on its backup"
    (found,) = json.loads(three.run("services", "-o", "json").stdout)
    assert found["backup"] == "only"
    say(three, "c", frontend("10.1.0.1", backup="spill"))
    done = three.run("services", status=1)
    assert "!! c: backup is spill, not only" in done.stdout


def test_the_policy_says_which_limits_there_are(three):
    for node in "abc":
        say(three, node, frontend("10.1.0.1", limits="5 open per endpoint"))
    assert rows(three.run("services"))[0][4] == "Cluster, 5 open per endpoint"
    say(three, "c", frontend("10.1.0.1"))
    done = three.run("services", status=1)
    assert "!! c: limits is none, not 5 open per endpoint" in done.stdout


def test_a_use_of_the_backup_that_only_newer_agents_know_is_left_out(three):
    for node in "abc":
        say(three, node, frontend("10.1.0.1", backup="odd"))
    assert rows(three.run("services"))[0][4] == "Cluster"


def test_backends_of_internal_policy_local_may_differ(three):
    for number, node in enumerate("abc"):
        here = frontend(more=[f"10.{number}.0.1"], internal_policy="Local")
        say(three, node, here)
    assert rows(three.run("services"))[0][5] == "3"


def local(outside, **more):
    """A NodePort under external policy Local, on a node that does this with clients outside."""
    fields = {"type": "NodePort", "address": "0.0.0.0", "external_policy": "Local"}
    return frontend("10.1.0.1", "10.1.0.2", outside=outside, **fields, **more)


def test_under_external_policy_local_it_is_said_which_nodes_serve_clients_outside(three):
    for node, outside in (("a", "served"), ("b", "drop"), ("c", "served")):
        say(three, node, local(outside))
    said = "  clients outside: served by a, c; dropped by b"
    assert three.run("services").stdout.splitlines()[2:] == [said]
    assert three.run("services", "-o", "wide").stdout.splitlines()[-1] == said
    (found,) = json.loads(three.run("services", "-o", "json").stdout)
    assert found["outside"] == {"served": ["a", "c"], "dropped": ["b"]}
    assert (found["missing_on"], found["differences"]) == ([], {})


def test_who_serves_clients_outside_is_known_of_idle_nodes_too(three):
    for node in "abc":
        say(three, node, local("refuse", counts=(0, 0, 0, 0)))
    assert three.run("services").stdout.splitlines()[2:] == [
        "  clients outside: refused by a, b, c"
    ]


def test_clients_outside_have_a_line_only_where_policy_local_applies(three):
    for node in "abc":
        say(three, node, local(""))
    assert "outside" not in three.run("services").stdout
    (found,) = json.loads(three.run("services", "-o", "json").stdout)
    assert found["outside"] == {}


def test_a_list_is_of_one_namespace_which_agents_choose_or_of_all(three):
    here, shop = frontend("10.1.0.1"), frontend(address="10.96.0.11", namespace="shop")
    for node in "abc":
        say(three, node, here, options=" --compact --namespace=default")
        say(three, node, shop, options=" --compact --namespace=shop")
        say(three, node, here, shop)
    assert [row[3] for row in rows(three.run("services"))] == ["default/web:http"]
    assert [row[3] for row in rows(three.run("services", "-n", "shop"))] == ["shop/web:http"]
    assert len(rows(three.run("services", "-A"))) == 2


def test_one_service_is_asked_for_by_name(three):
    for node in "abc":
        say(three, node)
    done = three.run("services", "-n", "shop", "--service", "web", status=1)
    assert all("--service=shop/web" in argv for argv in three.objects.executed)
    assert done.output == "Error: no Service shop/web is served\n"


def test_of_a_service_that_a_node_did_not_speak_of_nothing_is_said(three):
    for node in "ac":
        say(three, node)
    three.fail("b", "services --compact", "Error: out of memory")
    done = three.run("services", "-n", "shop", "--service", "web", status=1)
    assert done.stderr == "b: out of memory\n"


def test_the_wide_table_counts_the_nodes_of_each_backend(three):
    say(three, "c", frontend("10.1.0.1"))
    done = three.run("services", "-o", "wide", status=1)
    assert [line.strip() for line in done.stdout.splitlines()[2:4]] == [
        "-> 10.1.0.1:8080 on 3 nodes",
        "-> 10.1.0.2:8080 on 2 nodes",
    ]


@pytest.mark.parametrize(
    "nonsense",
    [
        *("", "no base64", compact(7), compact([7]), compact([[{}, [0, 0, 0, 0]]])[:-8]),
        *(compact([[form, [0, 0, 0, 0]]]) for form in ("", [], [[*"abcdef", "http"], [], []])),
        *(compact([[form_of(frontend()), counts]]) for counts in ([], [1, 2, 3, -4], ["many"] * 4)),
        compact([[form_of(frontend()), [0, 0, 0, 1 << 63]]]),
    ],
)
def test_nonsense_is_one_line(three, nonsense):
    three.say("b", "services --compact", nonsense)
    done = three.run("services", status=1)
    assert re.fullmatch(
        r"b: (an answer that this version cannot read \(.*\)|.* no output)\n", done.stderr
    )
    assert [row[6] for row in rows(done)] == ["4"]


def test_an_answer_may_be_nested_as_deep_as_it_likes(three):
    three.say("b", "services --compact", b64encode(zlib.compress(b"[" * 100_000)).decode())
    assert three.run("services", status=1).stderr.startswith("b: an answer that this version")


def test_what_unpacks_to_very_much_is_refused(three, monkeypatch):
    monkeypatch.setattr("ebpflb.model.compact._MOST_BYTES", 1000)
    three.say("b", "services --compact", compact([0] * 1000))
    assert "too long" in three.run("services", status=1).stderr


def test_counts_are_those_of_all_forms(three):
    idle = (0, 0, 0, 0)
    say(three, "a", frontend("10.1.0.1", "10.1.0.2", counts=idle))
    say(three, "b", frontend("10.1.0.1", counts=idle))
    assert rows(three.run("services", status=1))[0][6:] == ["2", "4", "1", "0"]


def test_a_node_that_fails_is_named_and_not_called_missing(three):
    three.fail("a", "services --compact", "Error: out of memory")
    done = three.run("services", status=1)
    assert done.stderr == "a: out of memory\n"
    assert rows(done)[0][5:] == ["2", "4", "8", "2", "0"]


def test_an_agent_of_another_version_is_one_line(three):
    three.fail("b", "services --compact", "Error: No such option: --compact", 2)
    done = three.run("services", status=1)
    assert done.stderr == "b: an agent of another version: No such option: --compact\n"
    assert [row[6] for row in rows(done)] == ["4"]


def test_it_is_asked_again_until_an_interrupt(three, monkeypatch):
    interrupt_after(2, monkeypatch, between=lambda: say(three, "c"))
    done = three.run("services", "-w", "-o", "jsonl", status=INTERRUPTED)
    missing = [json.loads(line)["missing_on"] for line in done.stdout.splitlines()]
    assert missing == [[], ["c"]]


def test_on_a_narrow_terminal_all_of_it_is_shown(three, screen):
    say(three, "c", frontend("10.1.0.2", "10.1.0.3", "10.1.0.4", external_policy="Local"))
    check_narrow(screen, program, "services", "--kubeconfig", str(three.kubeconfig))
