# SPDX-License-Identifier: Apache-2.0
"""Annotations that are valid, and have no effect with the options of this node."""

from collections.abc import Iterator

from ebpflb.model.plan import Defaults
from ebpflb.model.service import Dsr, Service
from ebpflb.words import annotations


def without_effect(service: Service, defaults: Defaults) -> Iterator[str]:
    """A line for each annotation."""
    if service.annotated.dsr and defaults.dsr is Dsr.OFF:
        yield _line(annotations.DSR, "dsr")
    if service.annotated.weights and not defaults.pod_labels:
        yield _line(annotations.WEIGHTS, "watch-pods")


def _line(annotation: str, option: str) -> str:
    return f"the annotation {annotation} has no effect: the option {option} is off on this node"
