# SPDX-License-Identifier: Apache-2.0
"""Retry: a connection that an endpoint does not answer or refuses goes to another one."""

from collections.abc import Iterable

from ebpflb.model.address import Protocol
from ebpflb.model.extensions.annotated import Annotated
from ebpflb.words import annotations

NO_CONNECTIONS = (
    f"the annotation {annotations.RETRY} has no effect: all ports are UDP, which has no handshake"
)


def retries(annotated: Annotated, protocol: Protocol) -> bool:
    """Whether connections of this protocol to the Service are retried."""
    return annotated.retry and protocol is not Protocol.UDP


def has_no_effect(annotated: Annotated, protocols: Iterable[Protocol]) -> bool:
    """Whether the annotation asks for what none of the Service's ports can have."""
    return annotated.retry and not any(retries(annotated, each) for each in protocols)
