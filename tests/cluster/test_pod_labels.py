# SPDX-License-Identifier: Apache-2.0
"""The labels and weights of pods, from a real API server, which sends their metadata alone."""

import os
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from ebpflb.model.changes import Changes
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.source.api import Api
from ebpflb.source.interface import SourceEvent
from ebpflb.source.kubernetes import KubernetesSource
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.objects import apply, service

NODE = "node1"
ACCOUNT = "web"
SECONDS = 60
WEIGHT = "ebpflb.io/weight"


@pytest.fixture(scope="module")
def control() -> Iterator[ControlPlane]:
    """A control plane with a node that has no kubelet, and three namespaces."""
    made = ControlPlane.up(f"labels-{os.getpid()}", nodes=1)
    try:
        apply(made, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE}})
        for namespace in ("shop", "short"):
            made.kubectl("create", "namespace", namespace)
        for namespace in ("default", "shop", "short"):
            made.kubectl("-n", namespace, "create", "serviceaccount", ACCOUNT)
        yield made
    finally:
        made.down()


class Stage:
    """The source of an agent, and a model that receives its events."""

    def __init__(self, control: ControlPlane) -> None:
        self.control = control
        self.changes = Changes(NODE)
        self._events = SimpleQueue[SourceEvent]()
        self.source = KubernetesSource(Api(control.kubeconfig, ""), NODE, self._events.put)

    def wait(self, is_so: Callable[[], bool]) -> SourceEvent:
        """The event after which it is so."""
        while True:
            event = self._events.get(timeout=SECONDS)
            for key in event.removals:
                self.changes.remove(key)
            for item in event.upserts:
                self.changes.set(item)
            if is_so():
                return event

    def labels(self, name: str, namespace: str = "default") -> PodLabels | None:
        return self.changes.pod_labels(namespace, name)


@pytest.fixture
def stage(control: ControlPlane) -> Iterator[Stage]:
    made = Stage(control)
    made.source.start()
    yield made
    made.source.stop()


def weighted(name: str, weights: str, namespace: str = "default") -> dict[str, Any]:
    made = service(name)
    made["metadata"] |= {"namespace": namespace, "annotations": {"ebpflb.io/weights": weights}}
    return made


def pod(name: str, namespace: str = "default", weight: str = "", **labels: str) -> dict[str, Any]:
    annotations = {WEIGHT: weight} if weight else {}
    metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
    # No kubelet runs it.
    spec: dict[str, Any] = {"nodeName": NODE, "containers": [{"name": "web", "image": "none"}]}
    spec["serviceAccountName"] = ACCOUNT
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_labels_follow_the_pods_until_no_service_has_weights(control: ControlPlane, stage: Stage):
    apply(control, weighted("web", "version=v1:90,version=v2:10"))
    apply(control, pod("web-1", version="v1", app="web"))
    one = PodLabels("default", "web-1", (("version", "v1"),))
    stage.wait(lambda: stage.labels("web-1") == one)

    control.kubectl("label", "--overwrite", "pod/web-1", "version=v2")
    control.kubectl("annotate", "pod/web-1", f"{WEIGHT}=many")
    stage.wait(lambda: bool((found := stage.labels("web-1")) and found.problem))
    found = stage.labels("web-1")
    assert found
    assert (found.labels, found.weight) == ((("version", "v2"),), None)
    assert f"{WEIGHT}: want a number from 0 to 1000000" in found.problem

    failed = ["--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Failed"}}']
    control.kubectl("patch", "pod/web-1", *failed)
    stage.wait(lambda: stage.labels("web-1") is None)

    apply(control, pod("web-2", weight="3"))
    stage.wait(lambda: stage.labels("web-2") == PodLabels("default", "web-2", weight=3))
    control.kubectl("annotate", "service/web", "ebpflb.io/weights-")
    stage.wait(lambda: stage.labels("web-2") is None)


def test_a_history_that_is_gone_and_an_outage_lose_no_labels(control: ControlPlane, stage: Stage):
    apply(control, weighted("api", "pods", "shop"), pod("api-1", "shop", "2"))
    apply(control, pod("api-2", "shop", "3"))
    stage.wait(lambda: bool(stage.labels("api-1", "shop") and stage.labels("api-2", "shop")))
    control.stop_api()
    stage.wait(lambda: True)
    control.start_api()
    control.compact()
    control.stop_api()
    control.start_api()
    control.kubectl("-n", "shop", "annotate", "--overwrite", "pod/api-1", f"{WEIGHT}=5")
    stage.wait(lambda: stage.labels("api-1", "shop") == PodLabels("shop", "api-1", weight=5))
    assert stage.labels("api-2", "shop") == PodLabels("shop", "api-2", weight=3)


def test_the_labels_of_a_namespace_go_with_its_last_service(control: ControlPlane, stage: Stage):
    apply(control, weighted("api", "pods", "short"), pod("api-1", "short", "2"))
    stage.wait(lambda: stage.labels("api-1", "short") is not None)
    control.kubectl("-n", "short", "delete", "service/api")
    assert not stage.wait(lambda: stage.labels("api-1", "short") is None).errors
