# SPDX-License-Identifier: Apache-2.0
"""When channels of gRPC are spread, and what a row of that says."""

import pytest

from tests.bench.channels import spread
from tests.bench.channels.spread import CHANNELS, PODS, Call, even_since, row
from tests.bench.harness.options import BenchError, Options

LOST = "UNAVAILABLE: connection reset"


def call(channel: int, time: float, pod: int, error: str = "") -> Call:
    return Call((0, channel), time, "" if error else f"pod-{pod}", error)


def opened() -> list[Call]:
    return [call(channel, 0.0, channel % 2) for channel in range(CHANNELS)]


def moved(count: int) -> list[Call]:
    """To a share each, the last one at `count` seconds."""
    return [call(channel, channel + 1.0, channel % PODS) for channel in range(count)]


def test_channels_are_even_since_the_call_that_made_them_so():
    # One above the share of four is as even as it gets: pods 0 and 1 lose seven each.
    assert even_since(opened()) is None
    assert even_since(opened() + moved(CHANNELS)) == 22.0


def test_they_are_not_if_a_pod_has_more_in_the_end():
    late = [call(channel, 100.0, 0) for channel in (1, 2, 3)]
    assert even_since(opened() + moved(CHANNELS) + late) is None


def test_a_channel_without_an_answer_is_none_of_a_pod():
    assert even_since([call(channel, 0.0, 0, LOST) for channel in range(CHANNELS)]) is None


def test_a_row_says_when_and_what_failed():
    found = row("x", [*opened(), *moved(CHANNELS)], 10.0)
    assert (found.measured, found.result) == (
        "4/4/4/4/4/4 at the end, 48 calls",
        "even after 12 s, 0 failed",
    )
    assert found.verdict == "OK"
    failed = row("x", [*opened(), call(0, 5.0, 0, LOST)], 10.0)
    assert failed.measured == f"12/12 at the end, 25 calls, 1 times {LOST}"
    assert (failed.result, failed.verdict) == ("not even, 1 failed", "short")


def test_without_grpcio_the_bench_says_what_to_install(monkeypatch):
    monkeypatch.setattr(spread, "find_spec", lambda _: None)
    with pytest.raises(BenchError, match="pip install grpcio"):
        next(iter(spread.run(Options())))
