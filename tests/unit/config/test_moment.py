# SPDX-License-Identifier: Apache-2.0
import time
from datetime import UTC, datetime

import pytest

from ebpflb.config.moment import is_ago, moment, rfc3339_ns

SECOND = 1_000_000_000
NOW = int(datetime(2026, 11, 24, 12, 30, tzinfo=UTC).timestamp()) * SECOND


@pytest.fixture(autouse=True)
def berlin(monkeypatch):
    """An hour ahead of UTC in November, two in summer."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10m", "2026-11-24T12:20:00"),
        ("1h30m", "2026-11-24T11:00:00"),
        ("90", "2026-11-24T12:28:30"),
        ("0s", "2026-11-24T12:30:00"),
        ("03:10", "2026-11-24T02:10:00"),
        ("03:10:30", "2026-11-24T02:10:30"),
        ("13:30", "2026-11-24T12:30:00"),
        ("13:31", "2026-11-23T12:31:00"),
        (" 23:59 ", "2026-11-23T22:59:00"),
        ("2026-11-24T03:10", "2026-11-24T02:10:00"),
        ("2026-11-24T03:10:09", "2026-11-24T02:10:09"),
        ("2026-07-24T03:10", "2026-07-24T01:10:00"),
        ("2026-11-24T03:10Z", "2026-11-24T03:10:00"),
        ("2026-11-24T03:10+05:30", "2026-11-23T21:40:00"),
        ("1960-01-01T00:00", "1970-01-01T00:00:00"),
    ],
)
def test_moments_are_as_long_ago_or_local_time_or_in_a_zone(text, found):
    assert rfc3339_ns(moment(text, NOW)) == f"{found}.000000000Z"


@pytest.mark.parametrize("fraction", [".123456789", ".999999999", ".000000001", ".100000000"])
def test_the_time_of_a_flow_is_one_to_the_nanosecond(fraction):
    time_of_flow = f"2026-11-24T03:10:09{fraction}Z"
    assert rfc3339_ns(moment(time_of_flow, NOW)) == time_of_flow


def test_a_fraction_may_be_short():
    found = moment("2026-11-24T03:10:09.25+01:00", NOW)
    assert rfc3339_ns(found) == "2026-11-24T02:10:09.250000000Z"


def test_yesterday_was_before_the_clocks_were_changed():
    noon = moment("2026-10-25T01:00Z", NOW)
    assert rfc3339_ns(moment("02:30", noon - SECOND)) == "2026-10-25T00:30:00.000000000Z"
    assert rfc3339_ns(moment("14:00", noon)) == "2026-10-24T12:00:00.000000000Z"


@pytest.mark.parametrize(
    "text",
    [
        *("", "yesterday", "3:10", "24:00", "03:61", "-5m", "2026-11-24", "2026-13-24T03:10"),
        *("2026-11-24 03:10", "2026-11-24T03:10+5", "0001-01-01T00:00", "9" * 400, "03:10Z"),
    ],
)
def test_anything_else_is_an_error_that_says_what_is_wanted(text):
    with pytest.raises(ValueError, match="want a time, as in 03:10 or 2026-11-24T03:10, or how"):
        moment(text, NOW)


def test_only_what_is_a_duration_is_as_long_ago():
    assert [is_ago(text) for text in ("10m", "90", "03:10", "2026-11-24T03:10")] == [
        *(True, True),
        *(False, False),
    ]
