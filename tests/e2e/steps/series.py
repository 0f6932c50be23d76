# SPDX-License-Identifier: Apache-2.0
"""The series of one Service on a node's page of metrics."""

import sys
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from ebpflb.lab import LabNode
from tests.e2e.harness.waiting import wait_until_equal

_PAGE = """
import sys
from urllib.request import Request, urlopen
page = Request("http://127.0.0.1:10249" + sys.argv[1], headers={"Accept": sys.argv[2]})
print(urlopen(page).read().decode(), end="")
"""
Series = Mapping[tuple[str, ...], float]


def page(node: LabNode, path: str = "/metrics", accept: str = "*/*") -> str:
    return str(node.exec([sys.executable, "-I", "-S", "-c", _PAGE, path, accept]).stdout)


def series(node: LabNode, service: str) -> Series:
    """Of one Service: (name, values of the labels besides namespace and service) -> value."""
    return {
        (
            sample.name.removeprefix("ebpflb_"),
            *(
                value
                for name, value in sample.labels.items()
                if name not in {"namespace", "service"}
            ),
        ): sample.value
        for family in text_string_to_metric_families(page(node))
        for sample in family.samples
        if sample.labels.get("service") == service
    }


def wait_for(node: LabNode, service: str, expected: Series) -> None:
    """Return when the page, which may be a second old, has exactly these values."""

    def found() -> Series:
        seen = series(node, service)
        return {name: seen.get(name, 0) for name in expected}

    wait_until_equal(found, expected)


def plain(name: str, protocol: str) -> tuple[str, ...]:
    return f"service_{name}", protocol, protocol.upper()
