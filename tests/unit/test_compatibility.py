# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md matches the recorded runs, and has every CNI that can be run."""

from pathlib import Path

import pytest

from tests.cni.document import FAILED, LACKING, RECORDS, columns, read_record, render
from tests.cni.row import rows

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"


def test_the_document_is_made_of_the_records():
    assert DOCUMENT.read_text() == render(), "python -m tests.cni"


def test_every_record_is_that_of_a_row():
    assert {path.stem for path in RECORDS.iterdir()} <= set(rows())


@pytest.mark.parametrize("name", [name for name in rows() if read_record(name)])
def test_the_row_is_as_it_was_run(name):
    row, record = rows()[name], read_record(name)
    assert record
    assert record.version == row.version
    assert set(record.results) == set(columns())
    for fault, reasons in ((LACKING, row.lacks), (FAILED, row.fails)):
        assert {test for test, result in record.results.items() if result == fault} == set(reasons)
