# SPDX-License-Identifier: Apache-2.0
"""`make fuzz`: rounds take turns, and for one that fails there is a command that repeats it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import hypothesis

from tests.fuzz.__main__ import fuzz
from tests.fuzz.fuzzer import Fuzzer, Round
from tests.fuzz.objects import play_objects
from tests.fuzz.properties import play_properties

LAST = (1 << 32) - 1


def fuzzer(*, bad: int) -> Fuzzer:
    """One that draws a number, and fails with one seed."""

    @contextmanager
    def made() -> Iterator[Round]:
        def play(seed: int) -> str:
            assert seed != bad, "that one"
            return f"drew {Random(seed).randrange(1000)}"

        yield play

    return made


def test_each_fuzzer_has_a_round_though_there_is_no_time(capsys):
    fuzzers = {"dice": fuzzer(bad=0), "coins": fuzzer(bad=0)}
    assert fuzz(fuzzers, 0, 7) == []
    assert capsys.readouterr().out == "dice --seed 7: drew 331\ncoins --seed 7: drew 331\n"


def test_a_round_that_fails_ends_its_fuzzer_and_is_repeated_by_its_command(capsys):
    fuzzers = {"dice": fuzzer(bad=0), "coins": fuzzer(bad=1)}
    failed = fuzz(fuzzers, 300, LAST)
    assert failed == ["make fuzz ARGS='dice --seed 0'", "make fuzz ARGS='coins --seed 1'"]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "--seed" in line or "Error" in line] == [
        f"dice --seed {LAST}: drew 650",
        f"coins --seed {LAST}: drew 650",
        "dice --seed 0: failed",
        "AssertionError: that one",
        "coins --seed 0: drew 864",
        "coins --seed 1: failed",
        "AssertionError: that one",
    ]


def test_objects_are_made_by_what_they_reach():
    assert re.fullmatch(r"100 objects, \d{3,} branches", play_objects(7, runs=100))


def test_property_tests_are_played_with_fresh_examples():
    assert not hypothesis.settings.get_profile("fuzz").derandomize
    assert play_properties(["tests/unit/model/test_address.py"], 7).endswith(" passed")
