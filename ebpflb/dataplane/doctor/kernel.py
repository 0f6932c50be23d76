# SPDX-License-Identifier: Apache-2.0
"""Does the kernel have what the dataplane uses, and what is done without it."""

from collections.abc import Iterator

from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well
from ebpflb.dataplane.kernel.probe import FEATURES, Probe, Support

CHECK = "kernel"


def check_kernel(probe: Probe) -> list[Finding]:
    """Every feature that is missing, or that could not be told."""
    found = list(_lacking(probe))
    there = len(FEATURES) - len(found)
    return all_well(CHECK, f"{there} of {len(FEATURES)} features are there", found)


def _lacking(probe: Probe) -> Iterator[Finding]:
    for feature, row in FEATURES.items():
        support, reason = probe.find(feature)
        if support is Support.SUPPORTED:
            continue
        what = f"{support.value}: {reason}"
        if row.instead:
            yield Finding(Severity.NOTE, CHECK, feature, what, f"done instead: {row.instead}")
        else:
            severity = Severity.ERROR if support is Support.MISSING else Severity.WARNING
            yield Finding(severity, CHECK, feature, what, "nothing is served without it")
