# SPDX-License-Identifier: Apache-2.0
"""Retry: a connection that an endpoint does not answer or refuses goes to another one."""

from ebpflb.model.address import Protocol
from ebpflb.model.extensions.annotated import Annotated


def retries(annotated: Annotated, protocol: Protocol) -> bool:
    """Whether connections of this protocol to the Service are retried: UDP has no handshake."""
    return annotated.retry and protocol is not Protocol.UDP
