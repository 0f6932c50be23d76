# SPDX-License-Identifier: Apache-2.0
"""Annotations that cannot have an effect on the Service that has them."""

from collections.abc import Iterator

from ebpflb.model.service import Service, TrafficPolicy
from ebpflb.words import annotations


def annotations_without_effect(service: Service) -> Iterator[str]:
    """One line for each."""
    asked, ports = service.annotated, service.ports
    if asked.vip_unserved and not any(port.externally_accessible for port in ports):
        yield _without_effect(annotations.VIP_UNSERVED, "no load-balancer IP and no external IP")
    is_local = any(port.external_policy is TrafficPolicy.LOCAL for port in ports)
    if asked.no_local_endpoint and not is_local:
        yield _without_effect(annotations.NO_LOCAL_ENDPOINT, "no externalTrafficPolicy Local")


def _without_effect(name: str, why: str) -> str:
    return f"the annotation {name} has no effect: the Service has {why}"
