# SPDX-License-Identifier: Apache-2.0
import json
import os
import re

import pytest
from click.testing import CliRunner

from ebpflb.lab import Lab, LabConfig, Stack
from ebpflb.lab.state import LabState
from ebpflb.source.manifest import parse_manifest
from tests.bench.__main__ import BENCHES, main
from tests.bench.harness import labs, manifests, report
from tests.bench.harness.kube_proxy import absent
from tests.bench.harness.report import Row, keep, limit_row, percentile_row, ratio_row
from tests.bench.harness.rounds import Comparison, in_turns, percentile
from tests.bench.proxies import against

NAMES = ["connect", "bulk", "start"]


@pytest.fixture
def document(tmp_path, monkeypatch):
    path, charted = tmp_path / "benches.md", tmp_path / "performance.md"
    path.write_text("# P\n<!-- bench: begin -->\n<!-- bench: end -->\nend\n")
    charted.write_text("# C\n<!-- chart: begin -->\n<!-- chart: end -->\nend\n")
    monkeypatch.setattr(report, "DOCUMENT", path)
    monkeypatch.setattr(report, "CHARTED", charted)
    return path


def test_measures_take_turns_and_the_first_round_does_not_count():
    order = []

    def measure(name):
        order.append(name)
        return len(order)

    found = in_turns({"a": lambda: measure("a"), "b": lambda: measure("b")}, rounds=2)
    assert order == ["a", "b"] * 3
    assert found == {"a": [3, 5], "b": [4, 6]}


def test_the_help_names_all_benches():
    assert all(re.search(rf"\b{name}\b", main.help or "") for name in BENCHES)


def test_another_checkout_is_compared_by_some_benches_only(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = CliRunner().invoke(main, ["connect", "programs_live", "--other", "."])
    assert found.exit_code == 2
    assert "not with --other: connect\n" in found.output


def test_a_ratio_is_that_of_the_medians_and_its_span_that_of_the_rounds():
    ratio = Comparison(ours=[10, 30, 20], other=[20, 40, 10]).ratio
    assert ratio == (1.0, 0.5, 2.0)


@pytest.mark.parametrize(("percent", "value"), [(50, 5), (99, 10), (100, 10), (1, 1)])
def test_a_percentile_is_one_of_the_values(percent, value):
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == value


@pytest.mark.parametrize(("target", "verdict"), [(0.5, "OK"), (0.51, "short"), (None, "")])
def test_a_ratio_is_short_below_its_target(target, verdict):
    assert ratio_row("bulk", "x", Comparison([1], [2]), "/s", target).verdict == verdict


def test_a_limit_is_short_when_the_median_reaches_it():
    assert limit_row("start", "x", [0.5, 0.9, 5], "s", 1).verdict == "OK"
    assert limit_row("start", "x", [0.5, 1.0, 5], "s", 1).verdict == "short"
    assert percentile_row("change", "x", [1, 2, 30], 99, "ms", 10).verdict == "short"


def test_a_run_against_others_draws_the_chart(document):
    way = "1,000 Services: pod to ClusterIP"
    rows = [
        Row("against", f"nftables, {way}", "m", "2.000 (1.9 to 2.1)"),
        Row("against", f"Cilium, {way}", "m", "0.800 (0.7 to 0.9)"),
        Row("against", "nftables, 1 Service: pod to ClusterIP", "m", "9 (9 to 9)"),
        Row("against", "nftables, 1,000 Services: straight, pod to pod", "m", "9 (9 to 9)"),
    ]
    keep(rows, ["against"])
    text = report.CHARTED.read_text()
    assert [re.sub(" █+ ", " ", line.strip()) for line in text.splitlines()[3:7]] == [
        "pod to ClusterIP",
        "1.25 Cilium",
        "1.00 ebpflb",
        "0.50 kube-proxy, nftables",
    ]
    assert text.endswith("<!-- chart: end -->\nend\n")


def test_the_chart_is_that_of_the_rows():
    drawn = report.CHARTED.read_text()
    assert report.chart(report.rows_in(report.DOCUMENT.read_text())) in drawn


def test_rows_of_benches_that_did_not_run_stay(document):
    keep([Row("connect", "old", "m", "r"), Row("start", "s", "m", "r", "< 1 s", "OK")], NAMES)
    keep([Row("bulk", "b", "m", "r"), Row("connect", "new", "m", "r")], NAMES)
    lines = [line for line in document.read_text().splitlines() if line.startswith("| ")]
    assert [line.split()[3] for line in lines[2:]] == ["new", "b", "s"]
    assert lines[-1] == "| start | s | m | r | < 1 s | OK |"
    assert document.read_text().endswith("<!-- bench: end -->\nend\n")


def test_rows_of_another_machine_are_not_mixed(document, monkeypatch):
    keep([Row(name, "x", "m", "r") for name in NAMES], NAMES)
    before = document.read_text()
    monkeypatch.setattr(report, "machine_line", lambda: "another one")
    assert "another machine" in keep([Row("bulk", "b", "m", "r")], NAMES)
    assert document.read_text() == before
    keep([Row(name, "y", "m", "r") for name in NAMES], NAMES)
    assert "Machine: another one." in document.read_text()


def test_made_up_services_are_what_an_agent_reads():
    content = parse_manifest("x.json", manifests.numbered(7, 3, ["node1", "node2"]))
    assert not content.remarks
    assert [key.name for key in content.objects] == ["service-00007", "service-00007-1"]


def test_no_two_made_up_services_share_an_address():
    addresses = [manifests.cluster_ip(number) for number in range(10_000)]
    for number in (0, 1, 9_999):
        addresses += manifests.pods(number, 10) + manifests.pods(number, 1, first=10)
    assert len(set(addresses)) == len(addresses)


def test_one_endpoint_changes_with_the_first_one():
    documents = [json.loads(manifests.numbered(0, 10, ["node1"], first)) for first in (0, 1)]
    pods = [
        {each["addresses"][0] for each in document["items"][1]["endpoints"]}
        for document in documents
    ]
    assert len(pods[0] - pods[1]) == len(pods[1] - pods[0]) == 1


NFTABLES = """
    elements = { 10.96.0.1 . tcp . 443 : goto service-2QRHZV4L-default/kubernetes/tcp/https,
             10.96.100.6 . tcp . 80 : goto service-7K2QEZKH-bench/service-00000/tcp/main }
    elements = { tcp . 31002 : goto external-7K2QEZKH-bench/service-00000/tcp/main }
    meta l4proto tcp dnat ip to numgen random mod 1 map { 0 : 10.103.130.11 . 7000 }
"""
IPTABLES = """
-A KUBE-NODEPORTS -p tcp -m tcp --dport 31002 -j KUBE-EXT-EGZ3FMEI3BGHGTQG
-A KUBE-SEP-FJYRXGFDCN7LWT6W -p tcp -m tcp -j DNAT --to-destination 10.103.130.11:7000
-A KUBE-SERVICES -d 10.96.100.6/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-EGZ3FMEI3BGHGTQG
"""


@pytest.mark.parametrize("rules", [NFTABLES, IPTABLES], ids=["nftables", "iptables"])
def test_rules_of_kube_proxy_name_whole_addresses_and_ports(rules):
    named = {"10.96.100.6", "31002", "10.103.130.11"}
    others = {"10.96.100.60", "10.96.100", "6.100.6", "3100", "10.103.130.1"}
    assert absent(rules, named | others) == others
    assert absent("", named) == named


@pytest.fixture
def lab():
    config = LabConfig(nodes=2, pods=1, family=Stack.IPV4)
    return Lab(LabState(config, 0, "/cgroup", "/bpffs"))


def test_the_cluster_ips_against_kube_proxy_take_turns(lab):
    asked = [way.frontend(lab) for way in against.ways_of("iptables", ["10.96.0.1", "10.96.0.2"])]
    pod = (lab.pod("pod-2-1").ipv4, 7000)
    near, far = ((lab.node(name).ipv4, labs.NODE_PORTS[1]) for name in ("node2", "node1"))
    assert asked == [pod, pod, ("10.96.0.1", 80), ("10.96.0.2", 80), near, far]


def test_ways_against_kube_proxy_report_mode_and_size():
    one, two = (next(iter(against.ways_of("nftables", ips))) for ips in (["a"], ["a", "b"]))
    assert one.case == "nftables, 1 Service: straight, pod to pod"
    assert two.case == "nftables, 2 Services: straight, pod to pod"
    assert one.target == against.TARGET == 1
