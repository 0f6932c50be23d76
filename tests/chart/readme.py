# SPDX-License-Identifier: Apache-2.0
"""The chart's README: `python -m tests.chart.readme` writes it, and a test fails when it is
outdated.

The schema has the values and their types, values.yaml has their defaults, and the comments above
them say what they are for.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.chart.harness.rendering import CHART, Object

README = CHART / "README.md"
_HEAD = """\
# Helm chart of ebpflb

Kubernetes Services without kube-proxy: a DaemonSet with one agent per node. Neither this chart nor
an image is published yet; both come from a checkout.

    helm install ebpflb charts/ebpflb --namespace kube-system \\
      --set image.repository=REGISTRY/ebpflb \\
      --set k8sServiceHost=API_ADDRESS --set k8sServicePort=6443
    helm test ebpflb --namespace kube-system

[docs/install.md](../../docs/install.md) says what a node needs, how to install on each kind of
cluster, how to upgrade, and what `helm uninstall` does.

## Values

`values.schema.json` rejects names that are not in this table. The table comes from that file and
from `values.yaml`: `python -m tests.chart.readme` writes it.

| value | default | type | |
| --- | --- | --- | --- |
"""
_KEY = re.compile(r"^( *)(\w+):")
_COMMENT = re.compile(r"^( *)# ?(.*)")
_LONGEST_DEFAULT = 60


def render() -> str:
    """The whole page."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    text = (CHART / "values.yaml").read_text()
    defaults, comments = yaml.safe_load(text), _comments(text)
    rows = _rows(schema, defaults, comments, ())
    return _HEAD + "".join(f"{row}\n" for row in rows)


def _rows(
    schema: Object, defaults: Any, comments: dict[tuple[str, ...], str], path: tuple[str, ...]
) -> Iterator[str]:
    """One for each value; an object with a single explanation counts as one value."""
    for name, default in defaults.items():
        here, child = (*path, name), schema["properties"][name]
        parts = [place for place in comments if place[: len(here)] == here and place != here]
        if "properties" in child and isinstance(default, dict) and (parts or here not in comments):
            yield from _rows(child, default, comments, here)
        else:
            cells = (f"`{'.'.join(here)}`", _default(default), _type(child), comments.get(here, ""))
            yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _default(value: Any) -> str:
    text = json.dumps(value)
    return f"`{text}`" if len(text) <= _LONGEST_DEFAULT else "in `values.yaml`"


def _type(schema: Object) -> str:
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    limits = [schema.get(name) for name in ("minimum", "maximum")]
    if None not in limits:
        return f"{schema['type']}, {limits[0]} to {limits[1]}"
    if limits[0] is not None:
        return f"{schema['type']} from {limits[0]}"
    return str(schema["type"])


def _comments(text: str) -> dict[tuple[str, ...], str]:
    """The comments above each key of values.yaml, by its path."""
    found: dict[tuple[str, ...], str] = {}
    path: list[tuple[int, str]] = []
    lines: list[str] = []
    for line in text.splitlines():
        if comment := _COMMENT.match(line):
            lines.append(comment[2])
        elif key := _KEY.match(line):
            depth = len(key[1])
            path = [*(each for each in path if each[0] < depth), (depth, key[2])]
            if lines:
                found[tuple(name for _, name in path)] = " ".join(lines)
            lines = []
        else:
            lines = []
    return found


if __name__ == "__main__":
    README.write_text(render())
