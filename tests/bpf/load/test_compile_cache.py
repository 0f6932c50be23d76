# SPDX-License-Identifier: Apache-2.0
"""A compiled object is loaded from the cache without clang, and is identical in the kernel."""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.load.bytecode import Bytecode, Map, open_maps
from ebpflb.dataplane.load.compile import compile_and_pin
from ebpflb.dataplane.load.compile_cache import find, keep, key
from ebpflb.dataplane.load.source_text import source_text
from ebpflb.errors import CompileError, ProbeError
from tests.bpf.harness.loading import Loaded, load

PROGRAM = "lb_pod_ingress"
TEXT = """
BPF_TABLE_PINNED("hash", u32, u64, lb_used, 8, LB_PIN_MAPS "/lb_used");
BPF_TABLE_PINNED("hash", u64, u32, lb_unused, 4, LB_PIN_MAPS "/lb_unused", BPF_F_NO_PREALLOC);
BPF_PERCPU_ARRAY(lb_scratch_of_a_long_name, u64, 1);

int lb_pod_ingress(struct __sk_buff *skb)
{
	u32 key = 0;

	return lb_used.lookup(&key) && lb_scratch_of_a_long_name.lookup(&key);
}
"""
USED = Map("lb_used", True, MapType.HASH, 4, 8, 8, 0)
UNUSED = Map("lb_unused", True, MapType.HASH, 8, 4, 4, 1)
SCRATCH = Map("lb_scratch_of_a_long_name", False, MapType.PERCPU_ARRAY, 4, 8, 1, 0)
RETURNS_NOTHING = bytes([0x95, *bytes(7)])  # exit; its return value is not set.


class Place(NamedTuple):
    """A directory for pins and cache."""

    pins: Path
    programs: Path
    cache: Path

    def compile(self, text: str = TEXT) -> None:
        """Pin the program and the maps of a source text."""
        defines = {"LB_PIN_MAPS": f'"{self.pins}"'}
        compile_and_pin(text, defines, self.programs, names=[PROGRAM], cache=self.cache)

    def pinned(self) -> set[str]:
        """The names of all pins."""
        return {path.name for folder in (self.pins, self.programs) for path in folder.iterdir()}

    def forget_pins(self) -> None:
        """Remove the pins, as a reboot does."""
        for folder in (self.pins, self.programs):
            for path in folder.iterdir():
                path.unlink()

    def kept(self) -> Bytecode | None:
        """The text's cache entry."""
        return find(self.cache, key(TEXT, []) or "")


@pytest.fixture
def place(bpffs: Path, tmp_path: Path) -> Place:
    """An unused one."""
    place = Place(bpffs / "maps", bpffs / "progs", tmp_path / "cache")
    place.pins.mkdir()
    place.programs.mkdir()
    return place


@pytest.fixture
def compiled(place: Place) -> Place:
    """One whose text was compiled before the reboot."""
    place.compile()
    place.forget_pins()
    return place


def forbid_clang(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on bcc cannot compile."""
    found = importlib.util.find_spec("bcc")
    assert found
    assert found.origin
    fake = folder / "fake/bcc"
    fake.mkdir(parents=True)
    shutil.copy(Path(found.origin).with_name("version.py"), fake)
    (fake / "__init__.py").write_text("def BPF(**given):\n    raise RuntimeError\n")
    path = f"{fake.parent}:{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.fixture
def no_clang(compiled: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """One whose text was compiled, and where nothing else can be."""
    forbid_clang(tmp_path, monkeypatch)
    with pytest.raises(CompileError):
        compiled.compile(f"{TEXT}\n")
    return compiled


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of `twice`."""
    return tmp_path_factory.mktemp("twice")


@pytest.fixture(scope="module")
def twice(folder: Path) -> tuple[Loaded, Loaded]:
    """The programs as compiled by clang, and as loaded from the cache."""
    first, second = folder / "first", folder / "second"
    first.mkdir()
    second.mkdir()
    made = load(first, source_text(), cache=folder / "cache")
    with pytest.MonkeyPatch.context() as monkeypatch:
        forbid_clang(folder, monkeypatch)
        return made, load(second, source_text(), cache=folder / "cache")


def test_the_same_source_gives_the_same_bytes(
    twice: tuple[Loaded, Loaded], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (pins := tmp_path / "elsewhere").mkdir()
    load(pins, source_text(), names=(), cache=tmp_path / "cache")
    (made,) = (folder / "cache").iterdir()
    (again,) = (tmp_path / "cache").iterdir()
    assert made.name == again.name
    assert made.read_bytes() == again.read_bytes()


def test_the_programs_are_the_same(twice: tuple[Loaded, Loaded]):
    made, found = (
        {name: facts_of_program(fd) for name, fd in each.programs.items()} for each in twice
    )
    assert made == found


def facts_of_program(descriptor: int) -> tuple[object, ...]:
    facts = libbpf.prog_info(descriptor)
    sizes = (facts.xlated_prog_len, facts.verified_insns, facts.nr_map_ids)
    return facts.type, facts.name, bytes(facts.tag), facts.gpl_compatible, *sizes


def test_the_maps_are_the_same(twice: tuple[Loaded, Loaded]):
    made, found = (facts_of_maps(each.maps) for each in twice)
    assert made == found


def facts_of_maps(maps: MapSet) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for name, each in maps.items():
        facts = libbpf.map_info(each.fd)  # type: ignore[attr-defined]
        sizes = (facts.key_size, facts.value_size, facts.max_entries, facts.map_flags)
        found[name] = (facts.type, facts.name, *sizes)
    return found


def test_maps_are_kept_as_the_text_has_them(compiled: Place):
    kept = compiled.kept()
    assert kept
    assert {*kept.maps} == {USED, UNUSED, SCRATCH}
    assert kept.programs.keys() == {PROGRAM}


def test_pins_are_made_again_without_clang(no_clang: Place):
    no_clang.compile()
    assert no_clang.pinned() == {"lb_used", "lb_unused", PROGRAM}
    facts = libbpf.map_info(libbpf.obj_get(no_clang.pins / "lb_unused"))
    assert (facts.type, facts.key_size, facts.value_size, facts.max_entries) == UNUSED[2:-1]
    assert facts.map_flags == UNUSED.flags


def test_a_map_that_is_pinned_is_taken(no_clang: Place):
    descriptor = libbpf.map_create(MapType.HASH, "lb_used", 4, 8, 8)
    libbpf.obj_pin(descriptor, no_clang.pins / "lb_used")
    libbpf.map_update(descriptor, bytes(4), b"still me")
    no_clang.compile()
    assert libbpf.prog_info(libbpf.obj_get(no_clang.programs / PROGRAM)).nr_map_ids == 2
    again = libbpf.obj_get(no_clang.pins / "lb_used")
    assert libbpf.map_lookup(again, bytes(4), 8) == b"still me"


Shape = tuple[MapType, *tuple[int, ...]]
SHAPES: Mapping[str, Shape] = {
    "key": (MapType.HASH, 8, 8, 8),
    "value": (MapType.HASH, 4, 4, 8),
    "entries": (MapType.HASH, 4, 8, 9),
    "type": (MapType.LRU_HASH, 4, 8, 8),
    "flags": (MapType.HASH, 4, 8, 8, 1),
}


def pin_another(place: Place, kind: MapType, *sizes: int) -> None:
    libbpf.obj_pin(libbpf.map_create(kind, "lb_used", *sizes), place.pins / "lb_used")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_pinned_map_of_another_shape_is_left_to_bcc(no_clang: Place, shape: Shape):
    pin_another(no_clang, *shape)
    with pytest.raises(CompileError):
        no_clang.compile()
    assert no_clang.pinned() == {"lb_used"}


# As this version creates it.
AFFINITY = Map("lb_affinity", True, MapType.HASH, 20, 16, 64, 1)


def open_affinity(place: Place, kind: MapType, *sizes: int) -> None:
    """Open a pinned table as this version's."""
    libbpf.obj_pin(libbpf.map_create(kind, AFFINITY.name, *sizes), place.pins / AFFINITY.name)
    with ExitStack() as opened:
        open_maps([AFFINITY], place.pins, opened)


def test_a_table_of_flows_of_another_size_is_taken(place: Place):
    open_affinity(place, MapType.HASH, 20, 16, 128, 1)


@pytest.mark.parametrize("shape", [(MapType.HASH, 20, 24, 64, 1), (MapType.LRU_HASH, 20, 16, 64)])
def test_a_table_of_flows_of_another_kind_or_element_is_not_taken(place: Place, shape: Shape):
    with pytest.raises(ValueError, match="has another shape"):
        open_affinity(place, *shape)


def test_the_shape_of_a_map_that_was_pinned_before_is_not_kept(place: Place):
    pin_another(place, *SHAPES["entries"])
    place.compile()
    kept = place.kept()
    assert kept
    assert USED in kept.maps


def test_what_this_kernel_refuses_is_compiled_again(compiled: Place):
    kept = compiled.kept()
    assert kept
    name = key(TEXT, [])
    assert name
    keep(compiled.cache, name, kept._replace(programs={PROGRAM: RETURNS_NOTHING}))
    compiled.compile()
    assert compiled.pinned() == {"lb_used", "lb_unused", PROGRAM}
    assert compiled.kept() == kept


def test_what_fails_leaves_no_pins(no_clang: Place):
    (no_clang.programs / PROGRAM).mkdir()
    with pytest.raises(CompileError):
        no_clang.compile()
    assert no_clang.pinned() == {PROGRAM}


def test_what_others_may_have_written_is_not_loaded(no_clang: Place):
    no_clang.cache.chmod(0o777)
    with pytest.raises(CompileError):
        no_clang.compile()


def test_a_damaged_file_is_replaced(compiled: Place):
    (path,) = compiled.cache.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    compiled.compile()
    assert compiled.kept()


def test_without_a_place_to_keep_it_all_is_loaded(place: Place):
    place.cache.touch()
    place.compile()
    assert PROGRAM in place.pinned()


def test_without_bcc_nothing_is_loaded(
    compiled: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['bcc'] = None\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ProbeError, match="python3-bpfcc"):
        compiled.compile()
    assert compiled.pinned() == set()
