# SPDX-License-Identifier: Apache-2.0
"""One look at the cluster while the page is served: it prints nothing."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from ebpflb.kubectl.cluster import THROUGH_THE_RELAY, Cluster

Found = TypeVar("Found")


class Heard(NamedTuple, Generic[Found]):
    """said: what the look would have printed. failures: what went wrong -> the nodes."""

    found: Found
    said: Sequence[str] = ()
    failures: Mapping[str, set[str]] = {}


def aside(cluster: Cluster, look: Callable[[Cluster], Found], **changes: Any) -> Heard[Found]:
    """What `look` finds with a copy of the cluster, with these changes. EbpflbError."""
    said: list[str] = []
    failures: dict[str, set[str]] = defaultdict(set)
    found = look(replace(cluster, failures=failures, say=said.append, **changes))
    return Heard(found, [each for each in said if each != THROUGH_THE_RELAY], failures)
