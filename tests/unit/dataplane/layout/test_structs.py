# SPDX-License-Identifier: Apache-2.0
import ast
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ebpflb.dataplane
from ebpflb.dataplane.flows.records import _Record
from ebpflb.dataplane.layout.records import AddrRecord, BackendRecord, DescRecord, SocketRecord
from ebpflb.dataplane.layout.structs import (
    STRUCTS,
    LbAddrState,
    LbBackend,
    LbConntrack,
    LbDesc,
    LbDest,
    LbFlowRecord,
    LbFrontendKey,
    LbName,
    LbSocketKey,
    LbSourceRange,
    LbTuple,
    Struct,
    field_names,
    packed_format,
)


@pytest.mark.parametrize(
    ("struct", "expected"),
    [
        (LbFrontendKey, "!0x16s0xH0xB1x"),
        (LbTuple, "!0x16s0x16s0xH0xH0xB3x"),
        (LbDesc, "=0x20s0xI0xI0xI0xH0xH0xI0xI0xH0xH0xI0xH0xB1xI0xI0x"),
        (LbAddrState, "=0xQ0x16s0x"),
        (LbName, "!0x64s0x64s0x64s0x"),
        (LbSourceRange, "=0xI0xI0x16s0x"),
        (LbDest, "=0xH2xI0x"),
        (LbSocketKey, "=0xQ0x16s0x2s0xB0xB4x"),
    ],
)
def test_the_format_of_a_struct_follows_from_its_fields(struct: type[Struct], expected: str):
    assert packed_format(struct).format == expected


def test_every_struct_has_a_format_of_its_size():
    for struct in STRUCTS.values():
        assert packed_format(struct).size == ctypes.sizeof(struct)


def test_fields_that_are_not_chosen_are_skipped():
    backend = LbBackend(flags=1, serial=2, service=3)
    assert packed_format(LbBackend, "flags", "service").unpack(bytes(backend)) == (1, 3)
    assert packed_format(LbBackend, "serial").unpack(bytes(backend)) == (2,)
    assert packed_format(LbBackend, "serial").pack(2) == bytes(LbBackend(serial=2))


def test_fields_side_by_side_become_one_object():
    entry = LbConntrack(backend=3, serial=4, created=5)
    chosen = packed_format(LbConntrack, "created", ("backend", "serial"))
    assert chosen.unpack(bytes(entry)) == (5, bytes(entry)[LbConntrack.backend.offset :][:8])


@pytest.mark.parametrize(
    ("record", "struct"),
    [
        (SocketRecord, LbFrontendKey),
        (BackendRecord, LbBackend),
        (AddrRecord, LbAddrState),
        (DescRecord, LbDesc),
        (_Record, LbFlowRecord),
    ],
)
def test_a_record_names_its_fields_as_the_struct_does(record: type, struct: type[Struct]):
    other = {"address": "addr", "protocol": "proto", "socket": ""}
    names = [other.get(name, name) for name in record._fields]  # type: ignore[attr-defined]
    expected = spread(struct) if record is not BackendRecord else ["", *field_names(LbBackend)[4:]]
    assert names == expected


def spread(struct: type[Struct]) -> list[str]:
    """The names of the fields, those of ranges and traffic behind the field that holds them."""
    names = []
    fields: list[tuple[str, Any]] = list(struct._fields_)  # type: ignore[arg-type]
    for name, kind in fields:
        nested = field_names(kind) if kind.__name__ in ("LbRange", "LbTraffic") else []
        names += [f"{name}_{each}" for each in nested] or [name]
    return [name for name in names if name != "pad"]


def test_an_enum_fits_in_its_field():
    for struct in STRUCTS.values():
        for name, enum in struct.enums.items():
            assert max(enum) < 1 << 8 * getattr(struct, name).size, (struct, name)


# These speak to the kernel in its own formats, not in those of bpf/.
OTHER_FORMATS = {"kernel", "attach"}


def test_no_format_of_a_shared_struct_is_typed_by_hand():
    root = Path(ebpflb.dataplane.__file__).parent
    found = [
        f"{path.relative_to(root)}: {text}"
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in OTHER_FORMATS
        for text in typed_formats(path)
    ]
    assert not found


def typed_formats(path: Path) -> Iterator[str]:
    """The formats of calls of the library `struct`, but the one that is derived."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            first = node.args[0]
            is_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
            if is_text and (called in ("Struct", "Format", "calcsize") or "pack" in called):
                yield ast.unparse(node)
