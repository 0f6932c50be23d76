# SPDX-License-Identifier: Apache-2.0
"""The two formats of /metrics: Prometheus' text, and OpenMetrics 1.0, which has exemplars.

Both have the same series.
"""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

_COUNTER = "_total"
_END = b"# EOF\n"


@dataclass(frozen=True, slots=True)
class TextFormat:
    """`write` makes the text of a registry, without the end of the page."""

    content_type: str
    write: Callable[[CollectorRegistry], bytes]
    is_openmetrics: bool = False
    end: bytes = b""

    def family(self, name: str, kind: str) -> str:
        """How the lines HELP and TYPE call a metric, whose samples have this name."""
        is_short = self.is_openmetrics and kind == "counter"
        return name.removesuffix(_COUNTER) if is_short else name


def _write_openmetrics(registry: CollectorRegistry) -> bytes:
    page: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
    return page.removesuffix(_END)


PLAIN = TextFormat(CONTENT_TYPE_LATEST, generate_latest)
OPENMETRICS = TextFormat(
    openmetrics.CONTENT_TYPE_LATEST,
    _write_openmetrics,
    is_openmetrics=True,
    end=_END,
)
