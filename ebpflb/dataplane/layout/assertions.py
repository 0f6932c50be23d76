# SPDX-License-Identifier: Apache-2.0
"""What has each compile assert that C agrees with structs.py and enums.py."""

import ctypes
from collections.abc import Iterator

from ebpflb.dataplane.layout import enums, structs


def layout_assertions() -> str:
    """C text that fails to compile if types.h differs from the mirrors."""
    return "\n".join(_assertions()) + "\n"


def _assertions() -> Iterator[str]:
    for name, struct in structs.STRUCTS.items():
        yield _assertion(f"sizeof(struct {name})", ctypes.sizeof(struct))
        for field in structs.field_names(struct):
            place = getattr(struct, field)
            yield _assertion(f"__builtin_offsetof(struct {name}, {field})", place.offset)
            yield _assertion(f"sizeof(((struct {name} *)0)->{field})", place.size)
    yield _assertion("LB_FLOW_RECORD_VERSION", structs.FLOW_RECORD_VERSION)
    for enum in enums.PREFIXES:
        # Beside the code that it names, and so in whole programs only.
        is_elsewhere = enum is enums.SchedulerCode
        yield from ["#ifdef LB_SCHEDULER_H"] * is_elsewhere
        for name, member in enum.__members__.items():
            yield _assertion(name, member.value)
        yield from ["#endif"] * is_elsewhere


def _assertion(expression: str, value: int) -> str:
    return f'_Static_assert({expression} == {value}, "{expression} != {value}, see structs.py");'
