# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.doctor.node import check_kernel
from ebpflb.dataplane.kernel.probe import FEATURES, Feature, Probe, ProbeResult, Support


@pytest.fixture
def probe(monkeypatch):
    """A kernel that lacks what the test says."""

    def make(**lacking):
        made = Probe()
        findings = dict.fromkeys(FEATURES, ProbeResult(Support.SUPPORTED))
        findings.update({Feature[name]: finding for name, finding in lacking.items()})
        monkeypatch.setattr(made, "find", findings.__getitem__)
        return made

    return make


def found(probe):
    return [
        (str(each.severity), each.where, each.what, each.advice) for each in check_kernel(probe)
    ]


def test_a_kernel_with_everything_is_well(probe):
    assert found(probe()) == [
        ("ok", "", f"{len(FEATURES)} of {len(FEATURES)} features are available", "")
    ]


def test_what_something_helps_against_is_a_note(probe):
    good, note = found(probe(TCX_LINK=ProbeResult(Support.MISSING, "needs Linux 6.6")))
    assert good[0] == "ok"
    assert note == (
        "note",
        "tcx links",
        "missing: needs Linux 6.6",
        "workaround: clsact filters",
    )


@pytest.mark.parametrize(
    ("support", "severity"), [(Support.MISSING, "error"), (Support.UNKNOWN, "warning")]
)
def test_what_nothing_helps_against_is_trouble(probe, support, severity):
    ((found_severity, where, what, _),) = found(probe(BPFFS=ProbeResult(support, "why")))
    assert (found_severity, where, what) == (severity, "bpffs", f"{support.value}: why")
