# SPDX-License-Identifier: Apache-2.0
"""Verified instructions of each program stay within a written limit, far below the kernel's.

The kernel gives up at a million instructions, and older ones need more for the same program.
"""

import pytest

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.layout.programs import PROGRAMS
from tests.bpf.harness.loading import Loaded
from tests.skips import kernel_lacks

# Measured on Linux 6.18, with a margin.
LIMITS = {
    "lb_connect4": 34_000,
    "lb_connect6": 141_000,
    "lb_sendmsg4": 24_000,
    "lb_sendmsg6": 140_000,
    "lb_recvmsg4": 100,
    "lb_recvmsg6": 100,
    "lb_getpeer4": 250,
    "lb_getpeer6": 250,
    "lb_sock_ops": 24_000,
    "lb_sock_release": 2_700,
    "lb_host_ingress": 470_000,
    "lb_host_egress": 280_000,
    "lb_l3_ingress": 480_000,
    "lb_l3_egress": 292_000,
    "lb_pod_ingress": 345_000,
    "lb_pod_egress": 200_000,
    "lb_xdp": 345_000,
}


def test_every_program_has_a_limit():
    assert set(LIMITS) == set(PROGRAMS)


@pytest.mark.parametrize("name", LIMITS)
def test_a_program_stays_within_its_limit(programs: Loaded, record_property, name: str):
    count = libbpf.prog_info(programs.programs[name]).verified_insns
    if not count:
        kernel_lacks("verified_insns", "it reports 0")
    record_property("verified_insns", count)
    assert count <= LIMITS[name]
