# SPDX-License-Identifier: Apache-2.0
"""Retry: a connection that an endpoint does not answer or refuses goes to another one."""

from ebpflb.model.address import Protocol
from ebpflb.model.service import Service, ServicePort
from ebpflb.words import annotations

NO_CONNECTIONS = (
    f"the annotation {annotations.RETRY} has no effect: all ports are UDP, which has no handshake"
)


def retries(port: ServicePort) -> bool:
    """Whether its connections are retried."""
    return port.annotated.retry and port.name.protocol is not Protocol.UDP


def has_no_effect(service: Service) -> bool:
    """Whether the annotation asks for what no port of the Service can have."""
    return service.annotated.retry and not any(map(retries, service.ports))
