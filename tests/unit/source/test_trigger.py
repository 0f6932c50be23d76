# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.source.cache import trigger_time
from tests.builders import slice_manifest
from tests.unit.source.scripted import item


def triggered(metadata: object) -> float | None:
    return trigger_time(item({"metadata": metadata}).known.triggered)


def annotated(annotation: object) -> float | None:
    annotations = {"endpoints.kubernetes.io/last-change-trigger-time": annotation}
    return triggered({**slice_manifest()["metadata"], "annotations": annotations})


@pytest.mark.parametrize(
    ("annotation", "seconds"),
    [
        ("1970-01-01T00:00:10Z", 10),
        ("1970-01-01T01:00:10+01:00", 10),
        ("1970-01-01T00:00:10.25Z", 10.25),
        ("1970-01-01T00:00:10.250000999Z", 10.25),
    ],
)
def test_the_annotation_is_a_time_in_seconds(annotation: str, seconds: float):
    assert annotated(annotation) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("annotation", [None, "", "yesterday", 10, "1970-01-01T00:00:10"])
def test_what_is_no_time_with_a_zone_reports_nothing(annotation: object):
    assert annotated(annotation) is None


@pytest.mark.parametrize("metadata", [None, {}, {"annotations": None}, {"annotations": 3}, 3])
def test_a_slice_without_annotations_reports_nothing(metadata: object):
    assert triggered(metadata) is None
