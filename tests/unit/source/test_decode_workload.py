# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.source.api_types import PodMetadata
from ebpflb.source.decode import workload_of
from ebpflb.source.typed import checked

HASH = {"pod-template-hash": "5d8f6c"}


def workload(*owners: object, labels: object = HASH) -> str:
    metadata = {"name": "a", "labels": labels, "ownerReferences": list(owners)}
    return workload_of(checked(metadata, PodMetadata))


def owner(kind: str, name: str, *, controller: object = True) -> dict[str, object]:
    return {"kind": kind, "name": name, "controller": controller}


@pytest.mark.parametrize(
    ("kind", "name", "is_of"),
    [
        ("ReplicaSet", "web-5d8f6c", "Deployment/web"),
        ("StatefulSet", "db", "StatefulSet/db"),
        ("DaemonSet", "logs", "DaemonSet/logs"),
        ("Job", "migrate", "Job/migrate"),
        ("Job", "backup-29683440", "CronJob/backup"),
        ("Job", "release-2026", "Job/release-2026"),
        ("Rollout", "canary", "Rollout/canary"),
        ("Node", "node1", ""),
    ],
)
def test_a_pod_is_of_what_its_user_has_made(kind: str, name: str, is_of: str):
    assert workload(owner(kind, name)) == is_of


def test_a_replica_set_without_a_deployment_is_the_workload():
    assert workload(owner("ReplicaSet", "web"), labels={}) == "ReplicaSet/web"


def test_only_the_controller_counts():
    others = owner("Foo", "x", controller=False), owner("Bar", "y", controller="yes"), "text"
    assert workload(*others, owner("StatefulSet", "db")) == "StatefulSet/db"
    assert workload(*others) == workload() == ""


def test_what_is_no_list_has_no_owners():
    for odd in ({"ownerReferences": "text"}, {}):
        assert workload_of(checked({"name": "a", **odd}, PodMetadata)) == ""
