# SPDX-License-Identifier: Apache-2.0
"""A few fields out of each of many structs, by `struct`: ten times as fast as through ctypes."""

from ctypes import sizeof
from struct import Struct as Format
from struct import calcsize

from ebpflb.dataplane.layout.structs import Struct


def picked(struct: type[Struct], **fields: str) -> Format:
    """Of a struct these fields, in its order, each as this code of `struct` reads it.

    The bytes between them are skipped. A code may go beyond its field: "8s" takes two of 4 bytes.
    """
    text, at = "=", 0
    for name, code in fields.items():
        offset = getattr(struct, name).offset
        text += f"{offset - at}x{code}"
        at = offset + calcsize(f"={code}")
    return Format(f"{text}{sizeof(struct) - at}x")
