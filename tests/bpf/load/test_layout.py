# SPDX-License-Identifier: Apache-2.0
"""types.h, maps.h and their mirrors in Python: any difference is a compile error that names it."""

import re
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import KernelMap
from ebpflb.dataplane.layout import enums, structs
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.load.compile import STRICT, compile_and_pin
from ebpflb.dataplane.load.source_text import bpf_directory, source_text
from ebpflb.errors import CompileError, LoadError
from tests.bpf.harness.loading import SIZES, Loaded, kernel_settings

TYPES = "".join(path.read_text() for path in sorted(bpf_directory().glob("*types.h")))
SCHEDULER = (bpf_directory() / "scheduler.h").read_text()
C_STRUCTS = dict(re.findall(r"^struct (\w+) \{\n(.*?)^\};", TYPES, re.MULTILINE | re.DOTALL))
C_ENUMS = dict(
    re.findall(r"^enum (\w+) \{\n(.*?)^\};", TYPES + SCHEDULER, re.MULTILINE | re.DOTALL)
)
# The number of values; not a value itself.
COUNTS = {"LB_LOST_REASONS", "LB_XDP_RESULTS", "LB_HISTOGRAM_KINDS"}
WRITER = "lb_pod_ingress"
WRITES = """
int lb_pod_ingress(struct __sk_buff *skb)
{
	int key = 0;
	struct lb_settings *found = lb_settings.lookup(&key);

	if (found)
		found->flags = 0;
	return 0;
}
"""


def c_fields(body: str) -> list[str]:
    return re.findall(r"^\t[\w ]+ (\w+)(?:\[\w+\])?;", body, re.MULTILINE)


def c_members(body: str) -> set[str]:
    return set(re.findall(r"^\t(LB_\w+) =", body, re.MULTILINE)) - COUNTS


def test_every_struct_has_a_mirror():
    assert set(C_STRUCTS) == set(structs.STRUCTS)


@pytest.mark.parametrize("name", sorted(C_STRUCTS))
def test_a_mirror_has_the_fields_of_its_struct_in_order(name: str):
    assert structs.field_names(structs.STRUCTS[name]) == c_fields(C_STRUCTS[name])


def test_every_enum_has_a_mirror_with_all_members():
    mirrors = {frozenset(enum.__members__) for enum in enums.PREFIXES}
    assert mirrors == {frozenset(c_members(body)) for body in C_ENUMS.values()}


def test_every_map_is_as_the_loader_thinks(programs: Loaded):
    assert set(programs.maps) == set(MAPS)
    for name, spec in MAPS.items():
        made = programs.maps[name]
        assert isinstance(made, KernelMap)
        facts = libbpf.map_info(made.fd)
        shape = (facts.key_size, facts.value_size, facts.max_entries)
        assert (name, shape, facts.map_flags) == (name, spec.shape(SIZES), spec.flags)
        assert facts.name.decode() == name


def test_no_program_can_write_what_the_agent_decides(bpffs: Path):
    defines = {**SIZES.defines(), **kernel_settings(), "LB_PIN_MAPS": f'"{bpffs}"'}
    with pytest.raises(LoadError, match="write into map forbidden"):
        compile_and_pin(source_text(("maps.h",)) + WRITES, defines, bpffs, names=[WRITER])


def compile_types(directory: Path) -> None:
    compile_and_pin(source_text(("types.h",)), {}, directory, names=(), flags=STRICT)


def test_the_present_mirrors_agree(tmp_path: Path):
    compile_types(tmp_path)


Mirrors = dict[str, type[structs.Struct]]
Fields = list[Any]


def with_fields(name: str, change: Callable[[Fields], Fields]) -> Mirrors:
    """The mirrors, one of them with other fields."""
    fields = change(list(structs.STRUCTS[name]._fields_))
    return {**structs.STRUCTS, name: type("Drifted", (structs.Struct,), {"_fields_": fields})}


def swapped(fields: Fields) -> Fields:
    return [fields[1], fields[0], *fields[2:]]


DRIFTS = {
    "two fields swapped": (with_fields("lb_netns", swapped), "struct lb_netns, flags"),
    "a field missing": (with_fields("lb_counts", lambda f: f[:-1]), "sizeof(struct lb_counts)"),
    "a field too wide": (
        with_fields("lb_socket", lambda f: [*f[:2], ("pad", structs.u32), *f[3:]]),
        "struct lb_socket, backend",
    ),
    "a field of another type": (
        with_fields("lb_range", lambda f: [*f[:-1], ("if_empty", structs.u16), ("x", structs.u16)]),
        "struct lb_range",
    ),
    "a field renamed": (
        with_fields("lb_range", lambda f: [("start", structs.u32), *f[1:]]),
        "no member named 'start'",
    ),
}


@pytest.mark.parametrize(("mirrors", "culprit"), DRIFTS.values(), ids=DRIFTS)
def test_a_mirror_that_drifts_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mirrors: Mirrors, culprit: str
):
    monkeypatch.setattr(structs, "STRUCTS", mirrors)
    with pytest.raises(CompileError) as caught:
        compile_types(tmp_path)
    assert culprit in str(caught.value)
    assert "structs.py:" in str(caught.value)


def test_a_number_that_drifts_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    Drifted = IntEnum("Drifted", {"LB_HOOK_POD_EGRESS": 5})  # noqa: N806  a class
    monkeypatch.setattr(enums, "PREFIXES", {Drifted: "LB_HOOK_"})
    with pytest.raises(CompileError, match="LB_HOOK_POD_EGRESS != 5"):
        compile_types(tmp_path)
