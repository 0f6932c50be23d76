# SPDX-License-Identifier: Apache-2.0
"""The rules of this project: renaming or deleting a test that proves one fails here."""

from pathlib import Path

from tests.conformance.rules import faults, named_tests, read_groups

ROOT = Path(__file__).parents[3]


def test_every_rule_names_tests_that_exist():
    assert faults(ROOT, read_groups(ROOT)) == []


def test_only_files_that_a_whole_run_has_are_named():
    folders = {test.split("/")[1] for test in named_tests(read_groups(ROOT))}
    assert folders <= {"unit", "bpf", "e2e", "chart", "image", "cluster"}
