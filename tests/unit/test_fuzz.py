# SPDX-License-Identifier: Apache-2.0
"""`make fuzz`: rounds take turns, and each failure comes with a command that repeats it."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import hypothesis
import pytest

from tests.fuzz import guided
from tests.fuzz.__main__ import FUZZERS, fuzz, main
from tests.fuzz.corpus import kept
from tests.fuzz.fuzzer import Fuzzer, Round
from tests.fuzz.mutation import mutated
from tests.fuzz.properties import play_properties
from tests.fuzz.targets import TARGETS, target

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


def test_inputs_are_made_by_what_they_reach(tmp_path):
    guided.begin("selectors", tmp_path)
    before = len([*(tmp_path / "reached").iterdir()])
    found = guided.play_guided(guided.coverage("selectors"), tmp_path, 7, "-runs=2000")
    assert re.fullmatch(r"2000 inputs, \d{2,} branches", found)
    assert len([*(tmp_path / "reached").iterdir()]) > before


def test_a_fuzzer_has_no_name_that_its_help_lacks():
    words = re.findall(r"\w+", main.help or "")
    assert not [name for name in FUZZERS if name not in words]


def test_an_input_that_does_harm_is_reported_with_the_command_that_repeats_it(
    tmp_path, monkeypatch
):
    def find(*_):
        (tmp_path / "crash-1").write_bytes(b"\0")
        return subprocess.CompletedProcess([], 77, "Traceback")

    monkeypatch.setattr(guided, "_run", find)
    told = r"Traceback\necho AA== \| base64 -d >input; \S+ -m tests.fuzz.coverage page input"
    with pytest.raises(AssertionError, match=told):
        guided.play_guided(guided.coverage("page"), tmp_path, 7)


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_that_was_reached_does_harm_nor_what_is_like_it(name):
    found = target(name)
    reached = [*found.seeds, *kept(name)]
    with found.playing() as play:
        for given in (*reached, *mutated(name, reached, found.words, 2_000)):
            play(given)


def test_property_tests_are_played_with_fresh_examples():
    assert not hypothesis.settings.get_profile("fuzz").derandomize
    assert play_properties(["tests/unit/model/test_address.py"], 7).endswith(" passed")
