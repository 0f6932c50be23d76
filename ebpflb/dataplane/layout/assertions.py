# SPDX-License-Identifier: Apache-2.0
"""What makes a compile fail, by name, where the C types and their mirrors in Python drift apart."""

import ctypes
from collections.abc import Iterator

from ebpflb.dataplane.layout import enums, structs


def layout_assertions() -> str:
    """C text that fails to compile where types.h and structs.py or enums.py differ."""
    return "\n".join(_assertions()) + "\n"


def _assertions() -> Iterator[str]:
    for name, struct in structs.STRUCTS.items():
        yield _assertion(f"sizeof(struct {name})", ctypes.sizeof(struct))
        for field in structs.field_names(struct):
            place = getattr(struct, field)
            yield _assertion(f"__builtin_offsetof(struct {name}, {field})", place.offset)
            yield _assertion(f"sizeof(((struct {name} *)0)->{field})", place.size)
    yield _assertion("LB_FLOW_RECORD_VERSION", structs.FLOW_RECORD_VERSION)
    for enum in enums.ENUMS:
        for name, member in enum.__members__.items():
            yield _assertion(name, member.value)


def _assertion(expression: str, value: int) -> str:
    return f'_Static_assert({expression} == {value}, "{expression} != {value}, see structs.py");'
