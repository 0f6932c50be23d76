# SPDX-License-Identifier: Apache-2.0
"""One version for the program, its image and its chart."""

import re

import yaml

import ebpflb
from tests.chart.harness.rendering import CHART


def test_the_chart_installs_the_version_of_its_checkout() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == ebpflb.__version__
    assert chart["version"] == ebpflb.__version__


def test_the_image_is_labelled_with_that_version() -> None:
    text = (CHART.parents[1] / "Dockerfile").read_text()
    assert re.findall(r"^ARG VERSION=(.*)$", text, re.MULTILINE) == [ebpflb.__version__]
