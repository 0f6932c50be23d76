# SPDX-License-Identifier: Apache-2.0
"""What follows from the options: `python -m tests.options` writes it, tests say when it is old.

That is the value config in the chart's schema, and the table of options in docs/configuration.md.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebpflb.config import values
from ebpflb.config.kube_proxy_flags import WITHOUT_EFFECT
from ebpflb.config.option import Option
from ebpflb.config.options import OPTIONS
from ebpflb.words.connections import FLOW_EVENTS

Schema = dict[str, Any]

_ROOT = Path(__file__).parents[1]
SCHEMA = _ROOT / "charts/ebpflb/values.schema.json"
DOCUMENT = _ROOT / "docs/configuration.md"
# What depends on the pod and is therefore set by other values of the chart.
SET_BY_THE_CHART = frozenset(
    (
        *("api-servers", "kubeconfig", "manifests", "master", "node-name"),
        *("observe-bind-address", "observe-tls-directory"),
        *("bpffs-root", "cgroup-root", "dsr-key-file", "query-socket"),
        *("healthz-bind-address", "metrics-backends", "metrics-bind-address"),
        *("metrics-latency", "metrics-services"),
        *("namespace-selector", "service-selector"),
    )
)

_HEAD = "| option | value | what it is for  [default] | |\n| --- | --- | --- | --- |\n"
_BLANK = "\n\n"

_TEXT: Schema = {"type": "string"}
_DURATION: Schema = {"type": "string", "pattern": "^([0-9.]+(ns|us|ms|s|m|h))+$"}


def _whole(first: int, last: int) -> Schema:
    return {"type": "integer", "minimum": first, "maximum": last}


def _many(item: Schema) -> Schema:
    """A list, or its items in one text."""
    return {"anyOf": [_TEXT, {"type": "array", "items": item}]}


_CHECKED_BY: dict[Any, Schema] = {
    values.boolean: {"type": "boolean"},
    values.text: _TEXT,
    values.path: {"type": "string", "minLength": 1},
    values.label_value: {"type": "string", "maxLength": 63},
    values.ip_or_nothing: {"type": "string", "pattern": "^[0-9a-fA-F.:]*$"},
    values.node_port_range: {"type": "string", "pattern": "^[0-9]{1,5}-[0-9]{1,5}$"},
    values.verbosity: {"type": "integer", "minimum": 0},
    values.duration: {"anyOf": [{"type": "number", "minimum": 0}, _DURATION]},
    values.positive_duration: {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, _DURATION]},
    values.ejection: {"anyOf": [{"enum": ["off", "on", False, True]}, _whole(0, 1000)]},
    values.words: _many(_TEXT),
    values.cidrs: _many(_TEXT),
    values.nodeport_addresses: _many(_TEXT),
    values.served_ips: _many(_TEXT),
    values.ports: _many(_whole(1, 65535)),
    values.flow_events: _many({"enum": [*FLOW_EVENTS, values.NO_EVENTS]}),
}


def schema(option: Option) -> Schema:
    """What the chart takes for an option: at least what the agent does."""
    match option.parse:
        case values.Number(first, last):
            return _whole(first, last)
        case values.OneOf(words):
            # YAML reads off as a boolean.
            return {"enum": [*words, False] if "off" in words else list(words)}
    return _CHECKED_BY[option.parse]


def chart_schema() -> str:
    """values.schema.json with the options that are there."""
    found = json.loads(SCHEMA.read_text())
    found["properties"]["config"]["properties"] = {
        each.name: schema(each) for each in OPTIONS if each.name not in SET_BY_THE_CHART
    }
    return json.dumps(found, indent=2) + "\n"


def document() -> str:
    """docs/configuration.md with the options that are there."""
    before, rest = DOCUMENT.read_text().split(_HEAD)
    rows = "".join(f"{row}\n" for row in _rows())
    return f"{before}{_HEAD}{rows}\n{rest.partition(_BLANK)[2]}"


def _rows() -> Iterator[str]:
    for option in OPTIONS:
        names = ", ".join(f"`{name}`" for name in option.names)
        reason = WITHOUT_EFFECT.get(option.name)
        works = f"accepted, without effect: {reason}" if reason else "works"
        help = re.sub(r"--([a-z-]+)", r"`\1`", option.help)
        metavar = option.metavar.replace("|", "\\|")
        yield f"| {names} | `{metavar}` | {help} | {works} |"


if __name__ == "__main__":
    SCHEMA.write_text(chart_schema())
    DOCUMENT.write_text(document())
