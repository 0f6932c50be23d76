# SPDX-License-Identifier: Apache-2.0
"""Scripts with seeds that meet every deviation; `make fuzz ARGS=conntrack` continues with
others.
"""

from pathlib import Path

import pytest

from ebpflb.model.address import Protocol
from tests.bpf.harness.packets import TCP_KINDS
from tests.bpf.netfilter.comparison import FIRST_PORT, play, play_tcp, play_udp
from tests.bpf.netfilter.deviations import DEVIATIONS
from tests.bpf.netfilter.ours import Ours
from tests.bpf.netfilter.script import Script, Sent, Side, Step
from tests.bpf.netfilter.theirs import Netfilter

DOCS = Path(__file__).parents[3] / "docs/services.md"
# The last three meet the rare deviations.
TCP_SEEDS, UDP_SEEDS = (*range(1, 81), 250, 192748600826, 195346484627), range(1, 21)
NAMES = [each.name for each in DEVIATIONS]


def test_flows_match_netfilters_but_for_documented_deviations(ours: Ours, theirs: Netfilter):
    met = play_tcp(ours, theirs, TCP_SEEDS) + play_udp(ours, theirs, UDP_SEEDS)
    assert set(met) == set(NAMES)


# The handshake of a client and an endpoint, with the first numbers of each.
CLIENT, ENDPOINT = 1000, 1_000_000
SYN = Sent(Side.CLIENT, "S", CLIENT)
SYN_ACK = Sent(Side.ENDPOINT, "SA", ENDPOINT, CLIENT + 1)
ACK = Sent(Side.CLIENT, "A", CLIENT + 1, ENDPOINT + 1)


def _forged(side: Side, flags: str, off: int) -> Sent:
    """It acknowledges what the other side has sent, but is far from what its own has sent."""
    numbers = {Side.CLIENT: CLIENT + 1, Side.ENDPOINT: ENDPOINT + 1}
    seq = (numbers[side] + off) % (1 << 32)
    return Sent(side, flags, seq, numbers[side.other], is_forged=True, off=off)


def _are_netfilters(ours: Ours, theirs: Netfilter, packets: list[list[Step]]) -> bool:
    """Netfilter delivers some resets that it ignores; one of a client keeps it from opening."""
    met = {
        name
        for kind in TCP_KINDS
        for number, steps in enumerate(packets)
        for name in play(
            ours, theirs, [(kind, Script(number, Protocol.TCP, steps), FIRST_PORT + number)]
        )
    }
    return met <= {"invalid packet", "flow opened again"}


@pytest.mark.parametrize("side", Side)
def test_a_far_reset_does_not_end_a_handshake_that_the_endpoint_has_answered(
    ours: Ours, theirs: Netfilter, side: Side
):
    resets = [
        _forged(side, flags, off) for flags in ("R", "RA") for off in (-100_000, 100_001, 1 << 30)
    ]
    handshakes: list[list[Step]] = [[SYN, SYN_ACK, reset, ACK] for reset in resets]
    assert _are_netfilters(ours, theirs, handshakes)


def test_a_fin_before_the_endpoint_has_answered_does_not_count(ours: Ours, theirs: Netfilter):
    fins = [_forged(Side.ENDPOINT, flags, off) for flags in ("F", "FA") for off in (0, 1 << 30)]
    handshakes: list[list[Step]] = [[SYN, fin, SYN_ACK, ACK] for fin in fins]
    assert _are_netfilters(ours, theirs, handshakes)


def test_a_late_copy_of_the_handshake_does_not_open_a_closing_connection_again(
    ours: Ours, theirs: Netfilter
):
    fin = Sent(Side.ENDPOINT, "FA", ENDPOINT + 1, CLIENT + 1)
    assert _are_netfilters(ours, theirs, [[SYN, SYN_ACK, ACK, SYN, fin, SYN_ACK]])


def test_what_differs_is_documented():
    section = DOCS.read_text().split("\n## Beside netfilter's conntrack\n")[1].split("\n## ")[0]
    rows = [line.removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert [row for row in rows if not row.startswith(tuple(NAMES))] == []
    assert [name for name in NAMES if not any(row.startswith(name) for row in rows)] == []
