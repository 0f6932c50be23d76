# SPDX-License-Identifier: Apache-2.0
"""What the programs are compiled for: the features of the kernel, and the settings."""

from ebpflb.config.settings import Settings
from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.load.loader import Build


def build_for(probe: Probe, settings: Settings) -> Build:
    return Build(
        has_set_retval=probe.supports(Feature.SET_RETVAL),
        has_coarse_clock=probe.supports(Feature.COARSE_CLOCK),
        has_fib_mtu=probe.supports(Feature.FIB_MTU),
        has_sock_ops=probe.supports(Feature.SOCK_OPS),
        has_xdp=settings.xdp != "off",
        # With frags, generic XDP copies a packet without its mac_len (Linux 6.18), and tc then
        # sees no Ethernet header.
        has_xdp_frags=settings.xdp != "generic" and probe.supports(Feature.XDP_FRAGS),
        has_dsr=settings.dsr != "off",
    )
