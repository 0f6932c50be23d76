# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples


def found(severity: Severity) -> Finding:
    return Finding(severity, "x", "", "is so")


def test_warnings_and_errors_are_trouble():
    assert [found(each).is_trouble for each in Severity] == [False, False, True, True]


def test_all_is_well_beside_notes_and_not_beside_trouble():
    note, warning = found(Severity.NOTE), found(Severity.WARNING)
    good = Finding(Severity.OK, "x", "", "good")
    assert all_well("x", "good", []) == [good]
    assert all_well("x", "good", [note]) == [good, note]
    assert all_well("x", "good", [note, warning]) == [note, warning]


def test_the_first_few_stand_for_all():
    assert examples(["a", "b", "c"]) == "a, b, c"
    assert examples(range(5)) == "0, 1, 2 and 2 more"
