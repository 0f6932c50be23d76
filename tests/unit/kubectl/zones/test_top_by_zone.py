# SPDX-License-Identifier: Apache-2.0
"""Three nodes in two zones, and a Service with a backend in each zone."""

import json
import re

import pytest
import yaml

from ebpflb.cli import INTERRUPTED
from tests.builders import endpoint_manifest, node_manifest, slice_manifest
from tests.unit.cli.invoked import interrupt_after
from tests.unit.kubectl.answers import backend, compact_top, service
from tests.unit.kubectl.api_server import DAEMON_SETS, node

NODES, SLICES = "/api/v1/nodes", "/apis/discovery.k8s.io/v1/endpointslices"
SLICES_HERE = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
EAST, WEST = "10.1.0.1", "fd00::2"
BY_ZONE = ("top", "--by", "zone")


def carrying(address, connections, to, back, **more):
    return backend(address, connections, original_bytes=to, reply_bytes=back, **more)


def piece(zone, address, **more):
    family = "IPv6" if ":" in address else "IPv4"
    endpoints = [endpoint_manifest(address, zone=zone)]
    return slice_manifest(f"web-{zone}", addressType=family, endpoints=endpoints, **more)


@pytest.fixture
def zoned(nodes):
    nodes.add("a", "b", "c")
    zones = {"a": "east", "b": "west", "c": "west"}
    nodes.objects.lists[NODES] = [node_manifest(each, zone=zones[each]) for each in zones]
    for path in (SLICES, SLICES_HERE):
        # As the API server has it: not every IPv6 address is written as agents do.
        nodes.objects.lists[path] = [piece("east", EAST), piece("west", "fd00:0::2")]
    east, west = carrying(EAST, 3.0, 100.0, 900.0), carrying(WEST, 1.0, 1e6, 2e6)
    say(nodes, "a", service({**east, "local": True}, west))
    say(nodes, "b", service(east, west))
    say(nodes, "c", service(east, {**west, "local": True}))
    return nodes


def say(nodes, name, *services):
    nodes.say(name, "top --compact", compact_top(*services))


def rows(done):
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_traffic_of_all_nodes_is_added_up_by_pairs_of_zones(zoned):
    assert rows(zoned.run(*BY_ZONE)) == [
        "CLIENT ZONE BACKEND ZONE CONN/S B/S TO/FROM",
        "west west 2.0 2.0M/4.0M",
        "east west 1.0 1.0M/2.0M",
        "west east 6.0 200/1.8k",
        "east east 3.0 100/900",
        "across zones: 7.0 connections/s, 1.0M/2.0M B/s to/from backends",
    ]
    assert zoned.objects.executed[0][4:] == [
        *("ebpflb", "top", "--compact", "--interval=2", "--namespace=default")
    ]


def test_a_price_is_of_bytes_in_both_directions_that_cross_zones(zoned):
    done = zoned.run(*BY_ZONE, "--price", "0.1")
    # 0.1 * 3,000,000 B/s * 3600 s / 10^9
    assert rows(done)[:3] == [
        "CLIENT ZONE BACKEND ZONE CONN/S B/S TO/FROM PER HOUR PER MONTH",
        "west west 2.0 2.0M/4.0M - -",
        "east west 1.0 1.0M/2.0M 1.0800 788.40",
    ]
    assert rows(done)[-1] == "cost: 1.0807 per hour, 788.93 per month of 730 hours"
    assert rows(zoned.run(*BY_ZONE, "--price", "0"))[2].endswith("0.0000 0.00")


def test_pairs_without_a_price_cost_nothing_and_are_named(zoned, tmp_path):
    zoned.objects.lists[NODES][2] = node_manifest("c", zone="north")
    path = tmp_path / "prices"
    path.write_text("west east 0.1\nwest south 9\n")
    done = rows(zoned.run(*BY_ZONE, "--price", str(path)))
    assert [line for line in done if line.startswith("north")] == [
        "north west 1.0 1.0M/2.0M - -",
        "north east 3.0 100/900 - -",
    ]
    assert done[-2:] == [
        "cost: 1.0804 per hour, 788.66 per month of 730 hours",
        "without a price, and counted as free: east north, north west",
    ]


def test_tools_get_a_list_of_pairs(zoned):
    found = json.loads(zoned.run(*BY_ZONE, "-o", "json").stdout)
    assert found[1] == {
        "client_zone": "east",
        "backend_zone": "west",
        "crosses": True,
        "connections": 1.0,
        "original_bytes": 1e6,
        "reply_bytes": 2e6,
        "cost_per_hour": None,
        "cost_per_month": None,
    }
    assert [each["crosses"] for each in found] == [False, True, True, False]
    lines = zoned.run(*BY_ZONE, "-o", "jsonl").stdout.splitlines()
    assert list(map(json.loads, lines)) == found
    assert yaml.safe_load(zoned.run(*BY_ZONE, "-o", "yaml").stdout) == found
    priced = json.loads(zoned.run(*BY_ZONE, "--price", "1", "-o", "json").stdout)
    assert [priced[1]["cost_per_hour"], priced[1]["cost_per_month"]] == pytest.approx([10.8, 7884])
    assert priced[0]["cost_per_hour"] is None


def test_zones_that_are_not_known_do_not_cross_and_are_said(zoned):
    zoned.objects.lists[NODES][0] = node("a")
    zoned.objects.lists[SLICES_HERE].pop()
    done = rows(zoned.run(*BY_ZONE))
    assert done[1:5] == [
        "west unknown 2.0 2.0M/4.0M",
        "unknown unknown 1.0 1.0M/2.0M",
        "west east 6.0 200/1.8k",
        "unknown east 3.0 100/900",
    ]
    assert done[5].startswith("across zones: 6.0 connections/s, 200/1.8k B/s")
    assert done[6].startswith("unknown: nodes without a zone label, or endpoints without a zone")


def test_a_backend_has_the_zone_that_its_own_namespace_says(zoned):
    other = {"namespace": "other", "service": "lies"}
    zoned.objects.lists[SLICES].append(piece("moon", EAST, **other))
    assert "moon" not in zoned.run(*BY_ZONE, "-A").stdout


def test_an_object_that_cannot_be_read_costs_no_others(zoned):
    zoned.objects.lists[SLICES_HERE].insert(0, {"metadata": {"name": "odd"}, "addressType": 7})
    odd = {"metadata": {"name": "d", "labels": {"topology.kubernetes.io/zone": 7}}}
    zoned.objects.lists[NODES].insert(0, odd)
    assert rows(zoned.run(*BY_ZONE))[1] == "west west 2.0 2.0M/4.0M"


def test_names_of_zones_cannot_command_a_terminal(zoned, tmp_path):
    zoned.objects.lists[SLICES_HERE][1] = piece("\x1b[2J", WEST)
    path = tmp_path / "prices"
    path.write_text("")
    assert "\x1b" not in zoned.run(*BY_ZONE, "--price", str(path)).stdout


def test_one_service_is_counted_alone(zoned):
    for each in "abc":
        busy = service(carrying(EAST, 1.0, 5.0, 5.0))
        say(zoned, each, busy, service(carrying(WEST, 9.0, 9.0, 9.0), name="other"))
    assert rows(zoned.run(*BY_ZONE, "--service", "web"))[1:3] == [
        "west east 2.0 10/10",
        "east east 1.0 5.0/5.0",
    ]
    done = zoned.run(*BY_ZONE, "--service", "wep", status=1)
    assert "no Service default/wep is served (did you mean default/web?)" in done.stderr


def test_pairs_without_traffic_are_left_out(zoned):
    for each in "abc":
        say(zoned, each, service(carrying(EAST, 0.0, 0.0, 0.0, local=True)))
    assert rows(zoned.run(*BY_ZONE))[1:] == [
        "across zones: 0 connections/s, 0/0 B/s to/from backends"
    ]
    assert json.loads(zoned.run(*BY_ZONE, "-o", "json").stdout) == []


def test_only_the_given_nodes_are_asked_and_their_backends_known(zoned):
    assert rows(zoned.run(*BY_ZONE, "--node", "a"))[1:3] == [
        "east west 1.0 1.0M/2.0M",
        "east east 3.0 100/900",
    ]


def test_a_node_that_fails_is_named_and_the_others_are_shown(zoned):
    zoned.fail("b", "top --compact", "Error: out of memory")
    done = zoned.run(*BY_ZONE, status=1)
    assert done.stderr == "b: out of memory\n"
    assert rows(done)[1] == "east west 1.0 1.0M/2.0M"


def test_who_watches_sees_a_change_of_zones(zoned, monkeypatch):
    def move():
        zoned.objects.lists[NODES][0] = node_manifest("a", zone="north")

    interrupt_after(2, monkeypatch, between=move)
    done = zoned.run(*BY_ZONE, "-w", "-o", "jsonl", status=INTERRUPTED)
    found = list(map(json.loads, done.stdout.splitlines()))
    assert [each["client_zone"] for each in found[:4]] == ["west", "east", "west", "east"]
    assert [each["client_zone"] for each in found[4:]] == ["west", "north", "west", "north"]


@pytest.mark.parametrize("path", [NODES, SLICES_HERE])
def test_who_may_not_see_zones_is_told_in_one_line(zoned, path):
    name = path.rpartition("/")[2]
    zoned.objects.forbidden[path] = f'{name} is forbidden: User "me" cannot list {name}'
    done = zoned.run(*BY_ZONE, status=1)
    assert done.stderr == (
        "Error: --by zone has to list nodes and EndpointSlices: "
        f'RBAC forbids it: User "me" cannot list {name}\n'
    )


def test_a_viewer_of_a_namespace_is_refused_in_one_line(zoned):
    zoned.objects.forbidden[DAEMON_SETS] = 'daemonsets is forbidden: User "me" cannot list them'
    done = zoned.run(*BY_ZONE, status=1)
    assert re.fullmatch(r"Error: cannot look for agents: RBAC forbids it: .*\n", done.stderr)


def test_the_relay_is_not_asked(zoned):
    done = zoned.run(*BY_ZONE, "--via", "relay", status=2)
    assert "only the nodes answer this, by --via exec" in done.stderr
    zoned.run(*BY_ZONE)
    assert not [path for path in zoned.objects.requested if "observe.ebpflb.io" in path]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--price", "0.01"], "--price needs --by zone"),
        (["--by", "zone", "--price", "-1"], "-1 is no price: want from 0 to 1,000,000"),
        (["--by", "zone", "--price", "x.txt"], "x.txt: neither a number nor a file"),
        (["--by", "zone", "--at", "10m"], "--by zone does not work with --at"),
        (["--by", "zone", "--sort", "connections"], "--by zone does not work with --sort"),
        (["--by", "zone", "--backends"], "--by zone does not work with --backends"),
        (["--by", "zone", "--all"], "--by zone does not work with --all"),
        (["--by", "zone", "--interval", "30"], "--timeout must be longer than --interval"),
        (["--by", "node"], "'node' is not 'zone'"),
    ],
)
def test_options_that_make_no_sense_are_one_line(zoned, words, why):
    done = zoned.run("top", *words, status=2)
    assert why in done.output
    assert len(done.output.splitlines()) == 1
    assert not zoned.objects.executed
