# SPDX-License-Identifier: Apache-2.0
"""Objects whose managedFields only Go's JSON parser accepts, in each kind that the agent watches.

A real API server accepts them from anyone who may write such an object.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from ebpflb.kubectl.access import METADATA, Access
from tests.cluster.harness.agent import NODE, ClusterAgent, running_agent
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.objects import FREE, apply, one_node, piece, serves, service
from tests.e2e.harness.waiting import wait_until

GROUP = "odd"


class Hostile(NamedTuple):
    """A kind, and the fields of its objects besides their metadata."""

    plural: str
    path: str
    document: dict[str, Any]


KINDS = [
    Hostile(
        "services",
        "/api/v1/namespaces/default/services",
        {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}},
    ),
    Hostile(
        "endpointslices",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 8080}],
            "endpoints": [{"addresses": ["10.244.1.9"]}],
        },
    ),
    Hostile("nodes", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node"}),
    Hostile(
        "servicecidrs",
        "/apis/networking.k8s.io/v1/servicecidrs",
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "spec": {"cidrs": ["203.0.113.0/24"]},
        },
    ),
    Hostile("namespaces", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace"}),
    Hostile(
        "pods",
        "/api/v1/namespaces/default/pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "spec": {"nodeName": NODE, "containers": [{"name": "a", "image": "a"}]},
        },
    ),
]


@pytest.fixture
def control() -> Iterator[ControlPlane]:
    """A control plane with a node that has no kubelet, and odd objects of each kind."""
    with one_node("odd") as made:
        wait_until(lambda: "default" in made.kubectl("get", "serviceaccounts"), "may have pods")
        apply(made, service("plain"), piece("plain", "10.244.1.5"))
        create_all(made, "listed")
        yield made


def create_all(control: ControlPlane, stage: str) -> None:
    """An object of each kind with each kind of managedFields."""
    for kind in KINDS:
        for name, free in FREE.items():
            create(control, kind, f"{stage}-{name}", free)


def create(control: ControlPlane, kind: Hostile, name: str, free: bytes) -> None:
    labels = {"group": GROUP, "kubernetes.io/service-name": name}
    managed = {
        "manager": "odd",
        "operation": "Update",
        "apiVersion": kind.document["apiVersion"],
        "fieldsType": "FieldsV1",
        "fieldsV1": "@@",
    }
    metadata = {"name": name, "labels": labels, "managedFields": [managed]}
    raw = json.dumps({**kind.document, "metadata": metadata}).encode().replace(b'"@@"', free)
    made = subprocess.run(
        [binary("kubectl"), "create", "--raw", kind.path, "-f", "-"],
        env=os.environ | {"KUBECONFIG": str(control.kubeconfig)},
        input=raw,
        capture_output=True,
        check=True,
        timeout=60,
    )
    # The API server stores them unchanged.
    assert free in made.stdout


def is_served(control: ControlPlane, agent: ClusterAgent, address: str) -> None:
    """Whether all other objects are served at once."""
    apply(control, piece("plain", address))
    wait_until(lambda: serves(agent, "plain", address), f"{address} is served")
    assert agent.status()["source_errors"] == {}


def test_whatever_managed_fields_hold_every_object_is_read(control: ControlPlane):
    with running_agent(control) as agent:
        agent.wait_in_sync()
        assert serves(agent, "plain", "10.244.1.5")
        assert all(serves(agent, f"listed-{name}", "10.244.1.9") for name in FREE)

        create_all(control, "watched")
        is_served(control, agent, "10.244.1.6")
        assert all(serves(agent, f"watched-{name}", "10.244.1.9") for name in FREE)

        for kind in KINDS:
            control.kubectl("label", kind.plural, "-l", f"group={GROUP}", "changed=yes")
        is_served(control, agent, "10.244.1.7")
        assert the_plugin_reads(control) == {f"{at}-{name}" for at in STAGES for name in FREE}

        for kind in KINDS:
            control.kubectl("delete", kind.plural, "-l", f"group={GROUP}", "--wait=false")
        is_served(control, agent, "10.244.1.8")
        assert not any(agent.backends(f"{at}-{name}") for at in STAGES for name in FREE)
        assert agent.get("/readyz", 10256)[0] == 200
        assert "cannot read" not in agent.said()


STAGES = ("listed", "watched")


def the_plugin_reads(control: ControlPlane) -> set[str]:
    """The fields that are the same for all kinds."""
    access = Access(str(control.kubeconfig))
    selector = [("labelSelector", f"group={GROUP}")]
    names = [
        {str(each["metadata"]["name"]) for each in access.items(kind.path, selector, accept)}
        for kind in KINDS
        for accept in ("application/json", METADATA)
    ]
    return set.intersection(*names)
