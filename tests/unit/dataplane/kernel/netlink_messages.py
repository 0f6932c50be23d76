# SPDX-License-Identifier: Apache-2.0
"""Netlink attributes as the kernel writes them."""

import struct


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute with its padding; nest by passing joined attributes as the payload."""
    length = 4 + len(payload)
    return struct.pack("=HH", length, kind) + payload + bytes(-length % 4)
