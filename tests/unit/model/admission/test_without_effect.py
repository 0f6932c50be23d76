# SPDX-License-Identifier: Apache-2.0
"""Annotations of other things than one another: what a Service is told that cannot have them."""

from typing import Any

import pytest

from ebpflb.model.admission.without_effect import without_effect
from ebpflb.model.extensions.lifetime import Rebalance
from ebpflb.model.plan import Defaults
from ebpflb.model.service import Dsr, ServicePort, TrafficPolicy
from ebpflb.words.scheduler import Scheduler
from tests.builders import service, service_port

EVEN = Rebalance(30, 5)
WITH_AFFINITY = service_port(affinity_timeout=60)
LOCAL = service_port(node_port=30080, external_policy=TrafficPolicy.LOCAL)
DSR = Defaults(dsr=Dsr.ANNOTATED)
NEAR = Defaults(scheduler=Scheduler.LOWEST_LATENCY)


@pytest.mark.parametrize(
    ("port", "asked", "defaults", "why"),
    [
        (WITH_AFFINITY, {"rebalance": EVEN}, Defaults(), "with session affinity clients come back"),
        (service_port(), {"rebalance": EVEN}, NEAR, "scheduler lowest-latency does not spread"),
        (
            service_port(),
            {"rebalance": EVEN, "scheduler": Scheduler.SOURCE_HASH},
            Defaults(),
            "scheduler source-hash does not spread",
        ),
        (service_port(), {"rebalance": EVEN, "scheduler": Scheduler.MAGLEV}, NEAR, ""),
        (LOCAL, {"dsr": True}, DSR, "with externalTrafficPolicy Local pods see clients anyway"),
        (LOCAL, {"dsr": False}, DSR, ""),
        (service_port(), {"dsr": True}, DSR, ""),
    ],
)
def test_what_cannot_have_an_effect_is_told(
    port: ServicePort, asked: dict[str, Any], defaults: Defaults, why: str
):
    found = list(without_effect(service("web", port, **asked), defaults))
    assert len(found) == bool(why)
    assert all(why in line and "has no effect" in line for line in found)
