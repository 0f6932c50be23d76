# SPDX-License-Identifier: Apache-2.0
"""How long a flow without packets is remembered, by protocol and state.

lb_settings holds the timeouts for the programs and for expiry.py, which deletes the flows.
"""

from math import ceil
from typing import NamedTuple

from ebpflb.config.settings import Settings
from ebpflb.dataplane.layout.enums import CtState
from ebpflb.dataplane.layout.structs import LbSettings

# RFC 5382 requires at least 4 minutes for a connection that is opening or has closed.
TCP_OPENING_SECONDS = 240
TCP_CLOSED_SECONDS = 240


class Timeouts(NamedTuple):
    """Seconds without a packet until a flow is forgotten.

    For TCP kube-proxy's values, for UDP those of Linux. tcp_close_wait: one side has closed;
    udp_stream: answered, and had packets for more than 2 s; udp: any other.
    """

    tcp_established: int = 86400
    tcp_close_wait: int = 3600
    udp: int = 30
    udp_stream: int = 120


def timeouts(options: Settings) -> Timeouts:
    """The configured values; 0 means the default."""
    default = Timeouts()
    established = ceil(options.conntrack_tcp_timeout_established) or default.tcp_established
    return Timeouts(
        established,
        ceil(options.conntrack_tcp_timeout_close_wait) or established,
        ceil(options.conntrack_udp_timeout) or default.udp,
        ceil(options.conntrack_udp_timeout_stream) or default.udp_stream,
    )


def tcp_timeout(settings: LbSettings, state: int) -> int:
    """Seconds without a packet in either direction until a TCP or SCTP flow is forgotten."""
    if state & CtState.LB_CT_CLOSED:
        seconds: int = settings.tcp_closed_timeout
    elif not state & CtState.LB_CT_ESTABLISHED:
        seconds = settings.tcp_opening_timeout
    elif state & CtState.LB_CT_OTHER_FIN:
        seconds = settings.tcp_close_wait_timeout
    else:
        seconds = settings.tcp_established_timeout
    return seconds


def udp_timeout(settings: LbSettings, state: int) -> int:
    """Seconds without a packet in either direction until a UDP flow is forgotten."""
    is_stream = state & CtState.LB_CT_ESTABLISHED
    return int(settings.udp_stream_timeout if is_stream else settings.udp_timeout)
