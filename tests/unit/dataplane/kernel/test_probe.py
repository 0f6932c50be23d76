# SPDX-License-Identifier: Apache-2.0
from errno import EBADF, EINVAL, EIO

import pytest

from ebpflb.dataplane.kernel import probe as probes
from ebpflb.dataplane.kernel.probe import FEATURES, Feature, Probe, ProbeResult, Row, Support
from ebpflb.errors import ProbeError


class Trial:
    """A feature test with a given result."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        if self.error:
            raise self.error


@pytest.fixture
def try_out(monkeypatch):
    def try_out(error: Exception | None) -> ProbeResult:
        row = Row("Linux 9.9", Trial(error), proves=(EBADF,), disproves=(EINVAL,), instead="x")
        monkeypatch.setitem(FEATURES, Feature.TCX_LINK, row)
        return Probe().find(Feature.TCX_LINK)

    return try_out


def test_every_feature_has_a_row():
    assert FEATURES.keys() == set(Feature)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(None, ProbeResult(Support.SUPPORTED), id="success"),
        pytest.param(
            OSError(EBADF, "bad"), ProbeResult(Support.SUPPORTED), id="errno that proves it"
        ),
        pytest.param(
            OSError(EINVAL, "invalid"),
            ProbeResult(Support.MISSING, "invalid: needs Linux 9.9"),
            id="errno that disproves it",
        ),
        pytest.param(
            OSError(EIO, "io"), ProbeResult(Support.UNKNOWN, "io"), id="errno that says nothing"
        ),
        pytest.param(
            ProbeError("no such thing"),
            ProbeResult(Support.MISSING, "no such thing"),
            id="the test's own word",
        ),
    ],
)
def test_the_outcome_of_a_test_decides(try_out, error, expected):
    assert try_out(error) == expected


def test_each_feature_is_tested_once(monkeypatch):
    trial = Trial()
    monkeypatch.setitem(FEATURES, Feature.IPV6, Row("x", trial))
    probe = Probe()
    assert probe.supports(Feature.IPV6)
    assert probe.supports(Feature.IPV6)
    assert trial.runs == 1


def test_a_feature_can_be_switched_off(monkeypatch):
    trial = Trial()
    monkeypatch.setitem(FEATURES, Feature.IPV6, Row("x", trial))
    probe = Probe(without={Feature.IPV6})
    assert not probe.supports(Feature.IPV6)
    assert probe.find(Feature.IPV6) == ProbeResult(Support.MISSING, "switched off")
    assert trial.runs == 0


def test_only_what_is_needed_and_missing_is_an_error(monkeypatch):
    rows = {feature: Row("x", Trial()) for feature in Feature}
    rows[Feature.TCX_LINK] = Row("x", Trial(OSError(EINVAL, "no")), instead="clsact filters")
    rows[Feature.CGROUP_LINK] = Row("x", Trial(OSError(EIO, "who knows")))
    monkeypatch.setattr(probes, "FEATURES", rows)
    Probe().require()
    rows[Feature.BPFFS] = Row("Linux 4.4", Trial(OSError(EINVAL, "no")))
    with pytest.raises(ProbeError, match=r"^bpffs: no: needs Linux 4\.4$"):
        Probe().require()
