# SPDX-License-Identifier: Apache-2.0
"""Annotations that are valid, and have no effect: on the Service that has them, or on this node."""

from collections.abc import Iterator

from ebpflb.model.extensions.retry import retries
from ebpflb.model.plan import Defaults
from ebpflb.model.service import Dsr, Service, TrafficPolicy
from ebpflb.words import annotations


def without_effect(service: Service, defaults: Defaults) -> Iterator[str]:
    """A line for each annotation."""
    asked, ports = service.annotated, service.ports
    is_local = any(port.external_policy is TrafficPolicy.LOCAL for port in ports)
    if asked.dsr and defaults.dsr is Dsr.OFF:
        yield _line(annotations.DSR, "the option dsr is off on this node")
    elif asked.dsr and is_local:
        yield _line(annotations.DSR, "with externalTrafficPolicy Local pods see clients anyway")
    if asked.weights and not defaults.pod_labels:
        yield _line(annotations.WEIGHTS, "the option watch-pods is off on this node")
    if asked.retry and not any(retries(asked, port.name.protocol) for port in ports):
        yield _line(annotations.RETRY, "all ports are UDP, which has no handshake")
    if asked.rebalance and (why := _why_uneven(service, defaults)):
        yield _line(annotations.REBALANCE, why)
    if asked.vip_unserved and not any(port.externally_accessible for port in ports):
        yield _line(
            annotations.VIP_UNSERVED, "the Service has no load-balancer IP and no external IP"
        )
    if asked.no_local_endpoint and not is_local:
        yield _line(annotations.NO_LOCAL_ENDPOINT, "the Service has no externalTrafficPolicy Local")


def _why_uneven(service: Service, defaults: Defaults) -> str:
    """Why clients that connect anew would not be spread; empty if they would."""
    if any(port.affinity_timeout for port in service.ports):
        return "with session affinity clients come back to their endpoint"
    scheduler = service.annotated.scheduler or defaults.scheduler
    return "" if scheduler.is_even else f"the scheduler {scheduler} does not spread clients evenly"


def _line(annotation: str, why: str) -> str:
    return f"the annotation {annotation} has no effect: {why}"
