# SPDX-License-Identifier: Apache-2.0
"""The agent and a real API server: outages, lost history, missing rights, conflicting objects."""

import json
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from ebpflb.dataplane.layout.structs import LbServiceNets
from tests.cluster.harness.agent import ClusterAgent, running_agent
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.objects import apply, one_node, piece, serves, service
from tests.e2e.harness.waiting import wait_until

SOME = 8


@pytest.fixture(scope="module")
def control() -> Iterator[ControlPlane]:
    """A control plane with a node that has no kubelet."""
    with one_node("agent") as made:
        yield made


@pytest.fixture
def agent(control: ControlPlane) -> Iterator[ClusterAgent]:
    with running_agent(control) as made:
        made.wait_in_sync()
        yield made


def test_what_the_api_says_is_served(control: ControlPlane, agent: ClusterAgent):
    apply(control, service("plain"), piece("plain", "10.244.1.5", "10.244.1.6"))
    wait_until(lambda: serves(agent, "plain", "10.244.1.5", "10.244.1.6"), "served")
    assert '"reason":"Starting"' in control.kubectl("get", "events", "-A", "-o", "json").replace(
        " ", ""
    )


def test_an_outage_changes_nothing_and_is_reported_once(control: ControlPlane, agent: ClusterAgent):
    apply(control, service("outage"), piece("outage", "10.244.1.7"))
    wait_until(lambda: serves(agent, "outage", "10.244.1.7"), "served")

    control.stop_api()
    wait_until(lambda: agent.status().get("source_errors"), "told")
    tried = agent.refused_connections()
    wait_until(lambda: agent.refused_connections() >= tried + SOME, "it tries again")
    (error,) = agent.status()["source_errors"].values()
    assert error == f"cannot reach the API server at {control.url}: Connection refused"
    assert agent.said().count("cannot reach the API server") == 1
    assert serves(agent, "outage", "10.244.1.7")
    assert agent.get("/livez", 10256)[0] == 200

    control.start_api()
    apply(control, piece("outage", "10.244.1.8"))
    wait_until(lambda: serves(agent, "outage", "10.244.1.8"), "converged")
    wait_until(lambda: not agent.status()["source_errors"], "told that it is over")


def test_a_history_that_is_gone_empties_nothing(control: ControlPlane, agent: ClusterAgent):
    apply(control, service("history"), piece("history", "10.244.1.9"))
    wait_until(lambda: serves(agent, "history", "10.244.1.9"), "served")
    index = agent.maps()["lb_frontends"]
    before = dict(index.items())

    control.stop_api()
    control.start_api()
    control.compact()
    control.stop_api()
    control.start_api()
    apply(control, piece("history", "10.244.1.10"))
    wait_until(lambda: serves(agent, "history", "10.244.1.10"), "converged")
    assert before.items() <= dict(index.items()).items()


def test_the_older_service_has_a_contested_address(control: ControlPlane, agent: ClusterAgent):
    shared = {"externalIPs": ["203.0.113.7"]}
    apply(control, service("z-older", **shared), piece("z-older", "10.244.1.11"))
    time.sleep(1.1)
    apply(control, service("a-younger", **shared), piece("a-younger", "10.244.1.12"))
    wait_until(lambda: agent.status()["conflicts"], "at odds")

    (line,) = agent.status()["conflicts"]
    expected = "default/a-younger does not get TCP 203.0.113.7 port 80: default/z-older has it"
    assert line == expected
    assert "203.0.113.7:80" in " ".join(agent.backends("z-older"))
    described = control.kubectl("describe", "service", "a-younger")
    assert "FrontendConflict" in described
    assert expected in described


def test_a_service_of_ten_thousand_endpoints(control: ControlPlane, agent: ClusterAgent):
    apply(control, service("huge"))
    for number in range(10):
        addresses = [f"10.{100 + number}.{i // 250}.{i % 250 + 1}" for i in range(1000)]
        apply(control, piece("huge", *addresses, number=number))
    wait_until(lambda: sum(map(len, agent.backends("huge").values())) == 10_000, "served", 60)
    assert agent.status()["in_sync"]
    control.kubectl("delete", "service/huge")


def test_annotations_as_large_as_the_api_allows(control: ControlPlane, agent: ClusterAgent):
    objects = [service("annotated"), piece("annotated", "10.244.1.9")]
    for each in objects:
        # The API server's limit is 256 KiB for all annotations of an object.
        each["metadata"]["annotations"] = {"long": "x" * (255 << 10)}
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    control.kubectl("create", "-f", "-", input=json.dumps(listed))
    wait_until(lambda: serves(agent, "annotated", "10.244.1.9"), "served")


def service_nets(agent: ClusterAgent) -> set[str]:
    """The networks in the map, both families."""
    value = agent.maps()["lb_service_nets"].lookup(bytes(4))
    assert value is not None
    nets = LbServiceNets.from_buffer_copy(value)
    ipv4 = {f"{ip_address(net.net)}/{net.mask.bit_count()}" for net in nets.ipv4 if net.mask}
    ipv6 = {str(ip_address(bytes(net.net))) for net in nets.ipv6 if any(net.mask.word)}
    return ipv4 | ipv6


def test_a_new_service_cidr_is_noticed_and_so_is_its_end(
    control: ControlPlane, agent: ClusterAgent
):
    wait_until(lambda: service_nets(agent), "known")
    before = service_nets(agent)
    more = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "more"},
        "spec": {"cidrs": ["203.0.113.0/24"]},
    }
    apply(control, more)
    wait_until(lambda: service_nets(agent) == before | {"203.0.113.0/24"}, "noticed")
    control.kubectl("delete", "--wait=false", "servicecidr/more")
    wait_until(lambda: service_nets(agent) == before, "gone", 30)
    assert not agent.status()["source_errors"]


def test_a_node_that_does_not_exist_is_reported(control: ControlPlane):
    with running_agent(control, node_name="nobody") as agent:
        agent.wait_in_sync()
        errors = agent.status()["source_errors"]
        assert errors == {"Node nobody": "Node nobody does not exist: --node-name must name one"}
        code, body = agent.get("/healthz", 10256)
        assert (code, json.loads(body)["nodeEligible"]) == (503, False)
        assert agent.get("/livez", 10256)[0] == 200


def test_a_node_that_is_about_to_go_gets_no_more_traffic(
    control: ControlPlane, agent: ClusterAgent
):
    assert agent.get("/healthz", 10256)[0] == 200
    control.kubectl("taint", "node", "node1", "ToBeDeletedByClusterAutoscaler=1:NoSchedule")
    wait_until(lambda: agent.get("/healthz", 10256)[0] == 503, "ineligible")
    control.kubectl("taint", "node", "node1", "ToBeDeletedByClusterAutoscaler-")
    wait_until(lambda: agent.get("/healthz", 10256)[0] == 200, "eligible")


def test_a_missing_right_is_named(control: ControlPlane, tmp_path: Path):
    with running_agent(control, kubeconfig=without_slices(control, tmp_path)) as agent:
        wait_until(lambda: agent.status().get("source_errors"), "told")
        error = agent.status()["source_errors"]["api"]
    resource = "endpointslices.discovery.k8s.io"
    assert error.startswith(
        f"may not list {resource}: the ClusterRole lacks the verb list on {resource}"
    )
    assert not agent.said().count("in sync")


def without_slices(control: ControlPlane, folder: Path) -> Path:
    """A kubeconfig of a ServiceAccount that may read only Services and Nodes."""
    control.kubectl("create", "serviceaccount", "poor")
    rights = ["--verb=get,list,watch", "--resource=services,nodes"]
    control.kubectl("create", "clusterrole", "poor", *rights)
    control.kubectl(
        "create",
        "clusterrolebinding",
        "poor",
        "--clusterrole=poor",
        "--serviceaccount=default:poor",
    )
    token = control.kubectl("create", "token", "poor").strip()
    made = json.loads(control.kubectl("config", "view", "--raw", "-o", "json"))
    made["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(made))
    return path
