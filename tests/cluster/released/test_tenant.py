# SPDX-License-Identifier: Apache-2.0
"""A user with all rights in one namespace tries to harm the others, which keep working."""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from ebpflb.errors import EbpflbError
from ebpflb.kubectl.agents import CONTAINER
from tests.chart.harness.rendering import NAMESPACE
from tests.cluster.harness import workloads
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.layout import API_PORT
from tests.cluster.harness.workloads import Load
from tests.cluster.objects import FREE
from tests.cluster.released.plugin import Plugin
from tests.cluster.released.shop import SPACE, cluster_ip, node_port
from tests.e2e.harness.waiting import wait_until

pytestmark = pytest.mark.slow

TENANT, USER = "tenant", "mallory"
AGENTS = "--selector=app.kubernetes.io/component=agent"
RESTARTS = "jsonpath={.items[*].status.containerStatuses[*].restartCount}"
# A later Service of another namespace will have this.
WANTED = "10.96.201.7"
KUBELET = 10250


@pytest.fixture
def tenant(cluster: Cluster) -> Iterator[None]:
    """The namespace in which the user has all rights."""
    cluster.kubectl("create", "namespace", TENANT)
    role = ("rolebinding", USER, "--clusterrole=cluster-admin", f"--user={USER}")
    cluster.kubectl("-n", TENANT, "create", *role)
    yield
    cluster.kubectl("delete", "namespace", TENANT)


def create(cluster: Cluster, *items: dict[str, Any]) -> None:
    """As the user."""
    listed = {"apiVersion": "v1", "kind": "List", "items": list(items)}
    as_user = ("-n", TENANT, f"--as={USER}", "create", "-f", "-")
    cluster.kubectl(*as_user, input=json.dumps(listed))


def create_odd(cluster: Cluster, name: str, free: bytes) -> None:
    """As the user: a Service whose managedFields only Go's JSON parser accepts."""
    managed = {"manager": "odd", "operation": "Update", "apiVersion": "v1"}
    managed |= {"fieldsType": "FieldsV1", "fieldsV1": "@@"}
    made = workloads.service(f"odd-{name}", "bait")
    made["metadata"]["managedFields"] = [managed]
    subprocess.run(
        [
            *(binary("kubectl"), f"--as={USER}", "create", "-f", "-"),
            *("--raw", f"/api/v1/namespaces/{TENANT}/services"),
        ],
        env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)},
        input=json.dumps(made).encode().replace(b'"@@"', free),
        capture_output=True,
        check=True,
        timeout=60,
    )


def at(name: str, address: str, *ports: int) -> dict[str, Any]:
    """A Service with an external IP."""
    made = workloads.service(name, "bait", externalIPs=[address])
    made["spec"]["ports"] = [
        {"name": f"p{port}", "port": port, "targetPort": workloads.PORT} for port in ports
    ]
    return made


def with_tables(number: int) -> dict[str, Any]:
    """A Service with a lookup table for each of a hundred ports."""
    made = at(f"large-{number}", f"203.0.113.{number}", *range(1000, 1100))
    made["metadata"]["annotations"] = {"ebpflb.io/scheduler": "maglev"}
    return made


def impostor(cluster: Cluster) -> dict[str, Any]:
    """A pod that looks like an agent and is the newest one on its node."""
    made = workloads.asker("impostor", cluster.nodes[0].name)
    made["spec"]["containers"][0]["name"] = CONTAINER
    path = "jsonpath={.items[0].metadata.labels}"
    labels = cluster.kubectl("-n", NAMESPACE, "get", "pods", AGENTS, "-o", path)
    made["metadata"]["labels"] = json.loads(labels)
    return made


def restarts(cluster: Cluster) -> str:
    """The restart count of each agent."""
    return cluster.kubectl("-n", NAMESPACE, "get", "pods", AGENTS, "-o", RESTARTS)


def refused(cluster: Cluster) -> set[str]:
    """The user's Services with an event about refused addresses."""
    selector = "--field-selector=reason=AddressRefused"
    path = "jsonpath={.items[*].involvedObject.name}"
    return set(cluster.kubectl("-n", TENANT, "get", "events", selector, "-o", path).split())


def test_objects_of_a_tenant_do_not_affect_other_namespaces(
    cluster: Cluster, plugin: Plugin, tenant: None
):
    before = restarts(cluster)
    first, second = cluster.nodes
    running = [
        Load.start(first, f"http://{cluster_ip(cluster, 'web')}", 2),
        Load.start(cluster.client, f"http://{second.ip}:{node_port(cluster, 'web')}", 2),
    ]
    for name, free in FREE.items():
        create_odd(cluster, name, free)
    create(
        cluster,
        workloads.deployment("bait"),
        impostor(cluster),
        at("in-advance", WANTED, 80),
        at("api-server", cluster.control_plane.place.ip, API_PORT),
        at("kubelet", first.ip, KUBELET),
        *map(with_tables, range(1, 21)),
    )
    cluster.control_plane.wait("-n", TENANT, "rollout", "status", "deployment/bait")
    wait_until(lambda: refused(cluster) >= {"in-advance", "api-server", "kubelet"}, "told", 60)

    late = workloads.service("late", "web", clusterIP=WANTED)
    workloads.apply(cluster, SPACE, [late])
    ours = workloads.pods(cluster, SPACE, "web")
    for node in cluster.nodes:
        wait_until(lambda: reached(cluster, node.name) == ours, f"served on {node.name}")  # noqa: B023
    assert {each["node"] for each in plugin.json("status")} == {first.name, second.name}
    assert "impostor" in plugin.run("status").stderr

    results = [load.stop() for load in running]
    assert [result["failures"] for result in results] == [{}, {}]
    assert all(set(result["answers"]) == ours for result in results)
    assert restarts(cluster) == before
    cluster.kubectl("-n", SPACE, "delete", "service/late")


def reached(cluster: Cluster, node: str) -> set[str]:
    """The pods that reply to a pod's requests to the new Service; kubectl reaches it by the
    kubelet's port.

    None, until the node knows its endpoints.
    """
    try:
        answers = workloads.ask_from_pod(cluster, SPACE, f"asker-{node}", f"http://{WANTED}", 30)
    except EbpflbError:
        return set()
    return {answer["pod"] for answer in answers}
