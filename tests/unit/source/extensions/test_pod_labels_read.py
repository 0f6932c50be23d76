# SPDX-License-Identifier: Apache-2.0
"""The labels and the weight of a Pod, from the API server or a manifest."""

import json
from typing import Any

import pytest
import yaml

from ebpflb.errors import SourceError
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.model.pod import Pod
from ebpflb.source.decode import decode
from ebpflb.source.manifest import parse_manifest
from tests.builders import Manifest

WEIGHT = "ebpflb.io/weight"


def pod(weight: Any = None, **labels: Any) -> Manifest:
    """As a whole."""
    annotations = {} if weight is None else {WEIGHT: weight}
    metadata = {"name": "web-1", "namespace": "shop", "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": 3, "status": 3}


def read(manifest: Manifest) -> PodLabels:
    found = decode(json.dumps(manifest).encode(), kind=Kind.POD_LABELS)
    assert isinstance(found, PodLabels)
    return found


def test_all_labels_are_read_whatever_the_pod_is_otherwise():
    found = read(pod(version="v2", app="web"))
    assert found == PodLabels("shop", "web-1", (("app", "web"), ("version", "v2")))
    assert read({"metadata": {"name": "web-1"}}) == PodLabels("default", "web-1")


@pytest.mark.parametrize(("text", "weight"), [("0", 0), ("1000000", 1_000_000), ("", None)])
def test_a_pod_has_the_weight_of_its_annotation(text: str, weight: int | None):
    assert read(pod(text)) == PodLabels("shop", "web-1", weight=weight)


@pytest.mark.parametrize("text", ["-1", "1000001", "0.5", "many", "9" * 5000, 5, {}])
def test_a_wrong_weight_is_named_and_costs_no_labels(text: Any):
    found = read(pod(text, app="web"))
    assert (found.labels, found.weight) == ((("app", "web"),), None)
    assert found.problem.startswith(f"metadata.annotations.{WEIGHT}: ")
    assert len(found.problem) < 150


def test_annotations_that_are_no_object_are_named():
    manifest = pod()
    manifest["metadata"]["annotations"] = 3
    assert read(manifest).problem == "metadata.annotations: must be an object, not 3"


def test_labels_that_are_no_texts_are_an_error_that_names_the_pod():
    with pytest.raises(SourceError, match=r"\APod shop/web-1: metadata.labels.app: must be text"):
        read(pod(app=3))
    numbered = {**pod(), "metadata": {"name": "web-1", "labels": {3: "a", "b": "c"}}}
    with pytest.raises(SourceError, match=r"metadata.labels: must have texts as names\Z"):
        decode(numbered, kind=Kind.POD_LABELS)


def test_the_metadata_alone_says_by_its_kind_what_it_is():
    partial = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata"}
    found = decode({**partial, "metadata": {"name": "web-1", "labels": {"app": "web"}}})
    assert found == PodLabels("default", "web-1", (("app", "web"),))


def test_a_pod_in_a_manifest_has_labels_too():
    manifest = {**pod("5", app="web"), "spec": {}, "status": {}}
    found = parse_manifest("pods.yaml", yaml.safe_dump(manifest).encode()).objects
    assert found == {
        ObjectKey(Kind.POD, "shop", "web-1"): Pod("shop", "web-1"),
        ObjectKey(Kind.POD_LABELS, "shop", "web-1"): PodLabels(
            "shop", "web-1", (("app", "web"),), 5
        ),
    }


def test_users_know_them_as_those_of_a_pod():
    assert str(ObjectKey(Kind.POD_LABELS, "shop", "web-1")) == "Pod shop/web-1"
