# SPDX-License-Identifier: Apache-2.0
import ctypes
import math
import re
from errno import E2BIG, EEXIST, EINVAL, ENOENT
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.kernel.uapi import Exist, MapType
from ebpflb.dataplane.layout import enums, structs
from ebpflb.errors import MapError
from tests.memory_maps import SPECS, MapShape, memory_maps

BPF = Path(__file__).parents[3] / "bpf"
SCALARS = {"void": 0, "int": 4, "__u8": 1, "__u32": 4, "__u64": 8, "__s64": 8}
KINDS = {
    "hash": MapType.HASH,
    "lru_hash": MapType.LRU_HASH,
    "array": MapType.ARRAY,
    "percpu_array": MapType.PERCPU_ARRAY,
    "percpu_hash": MapType.PERCPU_HASH,
    "ringbuf": MapType.RINGBUF,
    "lpm_trie": MapType.LPM_TRIE,
}


def word(number: int) -> bytes:
    return number.to_bytes(4, "little")


def size_of(c_type: str) -> int:
    if c_type.startswith("struct "):
        return ctypes.sizeof(structs.STRUCTS[c_type.removeprefix("struct ")])
    return SCALARS[c_type]


def limits() -> dict[str, str]:
    text = (BPF / "config.h").read_text()
    return {
        "LB_LOST_REASONS": str(len(enums.FlowLost)),
        "LB_XDP_RESULTS": str(len(enums.XdpResult)),
        **dict(re.findall(r"^#define (LB_\w+) (.+)$", text, re.MULTILINE)),
    }


def number_of(text: str) -> int:
    """The value of a size in maps.h: a number, a name of config.h, a product or a power of two."""
    while names := re.findall(r"LB_\w+", text):
        text = text.replace(names[0], limits()[names[0]])
    operands = [int(word) for word in re.findall(r"\d+", text)]
    return 1 << operands[1] if "<<" in text else math.prod(operands)


def test_the_maps_are_those_of_maps_h():
    text = re.sub(r"^LB_MAP\w*\(", "LB_MAP(", (BPF / "maps.h").read_text(), flags=re.MULTILINE)
    text = text.replace("LB_RING(", 'LB_MAP("ringbuf", void, void, ')
    line = r'^LB_MAP\("(\w+)", ([\w ]+), ([\w ]+), (\w+), (.+)\);$'
    found = re.findall(line, text, re.MULTILINE)
    assert found
    assert {
        name: MapShape(KINDS[kind], size_of(key), size_of(leaf), number_of(size))
        for kind, key, leaf, name, size in found
    } == SPECS


@pytest.fixture
def names() -> BpfMap:
    return memory_maps({"lb_names": 2})["lb_names"]


@pytest.fixture
def words() -> BpfMap:
    return memory_maps({"lb_slots": 3})["lb_slots"]


def errno_of(error: pytest.ExceptionInfo[MapError]) -> int:
    return error.value.errno


def test_a_hash_holds_what_it_is_given(names: BpfMap):
    names.update(word(1), bytes(192))
    assert names.lookup(word(1)) == bytes(192)
    assert names.lookup(word(2)) is None
    assert names.delete(word(1))
    assert not names.delete(word(1))


def test_a_full_hash_refuses_a_new_key_but_not_an_old_one(names: BpfMap):
    names.update_batch([(word(1), bytes(192)), (word(2), bytes(192))])
    names.update(word(2), bytes(192))
    with pytest.raises(MapError) as error:
        names.update(word(3), bytes(192))
    assert errno_of(error) == E2BIG


def test_a_hash_minds_whether_the_key_must_exist(names: BpfMap):
    with pytest.raises(MapError) as error:
        names.update(word(1), bytes(192), exist=Exist.YES)
    assert errno_of(error) == ENOENT
    names.update(word(1), bytes(192), exist=Exist.NO)
    with pytest.raises(MapError) as error:
        names.update(word(1), bytes(192), exist=Exist.NO)
    assert errno_of(error) == EEXIST


def test_deleting_while_reading_does_not_disturb(names: BpfMap):
    names.update_batch([(word(1), bytes(192)), (word(2), bytes(192))])
    seen = []
    for chunk in names.chunks(1):
        seen.append(chunk.keys)
        names.delete_batch([word(1), word(2)])
    assert [key for key in seen if key] == [word(1)]


def test_an_array_has_all_its_elements_from_the_start(words: BpfMap):
    words.update(word(1), b"1234")
    assert words.lookup(word(1)) == b"1234"
    assert words.lookup(word(3)) is None
    expected = [(word(0), bytes(4)), (word(1), b"1234"), (word(2), bytes(4))]
    assert list(words.items()) == expected
    assert [chunk.size for chunk in words.chunks(2)] == [2, 1]


def test_an_array_refuses_other_indices_new_elements_and_deleting(words: BpfMap):
    for attempt, errno in (
        (lambda: words.update(word(3), bytes(4)), E2BIG),
        (lambda: words.update(word(0), bytes(4), exist=Exist.NO), EEXIST),
        (lambda: words.delete_batch([word(0)]), EINVAL),
    ):
        with pytest.raises(MapError) as error:
            attempt()
        assert errno_of(error) == errno


@pytest.mark.parametrize("name", ["lb_names", "lb_slots"])
def test_keys_and_values_of_another_size_are_refused(name: str):
    table = memory_maps()[name]
    for attempt in (
        lambda: table.lookup(bytes(3)),
        lambda: table.update(bytes(4), bytes(3)),
        lambda: table.delete(bytes(5)),
    ):
        with pytest.raises(MapError) as error:
            attempt()
        assert errno_of(error) == EINVAL


def test_the_value_of_a_per_cpu_map_has_all_cpus_side_by_side():
    table = memory_maps(cpus=3)["lb_count_front"]
    assert (table.cpus, table.value_size) == (3, 3 * 80)
    table.update(word(7), bytes(range(240)))
    assert table.lookup(word(7)) == bytes(range(240))
