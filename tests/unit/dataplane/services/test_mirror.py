# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.services.mirror import Mirror, Words
from tests.memory_maps import memory_maps
from tests.unit.dataplane.watching import Watch


def test_only_what_differs_is_written_and_only_when_flushed():
    watch = Watch(memory_maps({"lb_slots": 4}))
    slots = Mirror(watch.maps["lb_slots"])
    slots.set_span(1, b"aaaabbbb")
    assert slots.span(1, 2) == b"aaaabbbb"
    assert watch.written == []
    slots.flush()
    slots.set(1, b"aaaa")
    slots.set(2, b"cccc")
    slots.flush()
    slots.flush()
    assert len(watch.written) == 3
    assert [value for _, value in watch.plain["lb_slots"].items()][:3] == [
        bytes(4),
        b"aaaa",
        b"cccc",
    ]


def test_a_copy_is_read_again():
    maps = memory_maps({"lb_slots": 4})
    slots = Mirror(maps["lb_slots"])
    assert slots.is_blank
    slots.set(0, b"lost")
    maps["lb_slots"].update(bytes([3, 0, 0, 0]), b"kept")
    slots.load()
    slots.flush()
    assert [slots[index] for index in range(4)] == [bytes(4), bytes(4), bytes(4), b"kept"]
    assert not slots.is_blank


def test_what_was_not_read_is_written_whatever_it_is():
    watch = Watch(memory_maps({"lb_slots": 10_000}))
    slots = Mirror(watch.maps["lb_slots"])
    slots.load(1)
    slots.set(0, bytes(4))
    slots.set(9999, bytes(4))
    slots.flush()
    assert len(watch.written) == 1


def test_what_was_not_read_differs_from_nothing():
    slots = memory_maps({"lb_slots": 10_000})["lb_slots"]
    slots.update((5000).to_bytes(4, "little"), b"left")
    mirror = Mirror(slots)
    mirror.load(1)
    mirror.set(4096, b"next")
    mirror.flush()
    assert not any(mirror.differences())
    slots.update((4096).to_bytes(4, "little"), b"else")
    assert any(mirror.differences())


def test_much_at_once_is_written_before_the_flush():
    watch = Watch(memory_maps({"lb_slots": 5000}))
    Mirror(watch.maps["lb_slots"]).set_span(0, b"x" * 4 * 5000)
    assert len(watch.written) == 5000


def test_words_are_numbers():
    maps = memory_maps({"lb_current": 2})
    words = Words(maps["lb_current"])
    words.set_word(1, 258)
    words.flush()
    assert words.word(1) == 258
    assert maps["lb_current"].lookup(bytes([1, 0, 0, 0])) == bytes([2, 1, 0, 0, 0, 0, 0, 0])
    assert list(words.column(0, "Q")) == [0, 258]
    assert list(words.column(4)) == [0, 0]


def test_what_was_never_used_takes_no_memory_and_is_zero():
    maps = memory_maps({"lb_slots": 1_000_000})
    slots = Mirror(maps["lb_slots"])
    slots.set(3, b"used")
    slots.flush()
    slots.load()
    assert len(slots.column(0)) < 1_000_000
    assert slots.span(2, 3) == bytes(4) + b"used" + bytes(4)
    assert slots[999_999] == bytes(4)
