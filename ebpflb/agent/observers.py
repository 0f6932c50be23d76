# SPDX-License-Identifier: Apache-2.0
"""Whom the loop tells what it does."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ebpflb.model.health_check import HealthCheck
from ebpflb.model.service import ServiceName
from ebpflb.observe.health import Health
from ebpflb.observe.metrics.page import Metrics
from ebpflb.observe.served.recorder import ServedRecorder
from ebpflb.source.interface import Announcement


class Observers(NamedTuple):
    health: Health
    metrics: Metrics
    served: ServedRecorder
    on_first_sync: Callable[[], None]
    announce: Callable[[Announcement], None]
    serve_health_checks: Callable[[Mapping[ServiceName, HealthCheck]], Mapping[ServiceName, str]]
