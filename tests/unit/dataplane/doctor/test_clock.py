# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.doctor.node import check_clock, kernel_status

PLL, UNSYNCHRONISED = 0x0001, 0x0040


def severities(status):
    return [str(each.severity) for each in check_clock(lambda: status)]


def test_a_clock_that_nothing_synchronises_is_a_note():
    assert severities(PLL) == ["ok"]
    assert severities(PLL | UNSYNCHRONISED) == ["note"]


def test_the_kernel_reports_its_status():
    assert 0 <= kernel_status() < 1 << 16
