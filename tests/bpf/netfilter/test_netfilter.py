# SPDX-License-Identifier: Apache-2.0
"""Scripts with seeds that meet every deviation; `make fuzz ARGS=conntrack` goes on with others."""

from pathlib import Path

from tests.bpf.netfilter.comparison import play_tcp, play_udp
from tests.bpf.netfilter.deviations import DEVIATIONS
from tests.bpf.netfilter.ours import Ours
from tests.bpf.netfilter.theirs import Netfilter

DOCS = Path(__file__).parents[3] / "docs/services.md"
# The last two meet what is rare.
TCP_SEEDS, UDP_SEEDS = (*range(1, 81), 250, 192748600826), range(1, 21)
NAMES = [each.name for each in DEVIATIONS]


def test_flows_are_netfilters_but_for_what_differs_on_purpose(ours: Ours, theirs: Netfilter):
    met = play_tcp(ours, theirs, TCP_SEEDS) + play_udp(ours, theirs, UDP_SEEDS)
    assert set(met) == set(NAMES)


def test_what_differs_is_documented():
    section = DOCS.read_text().split("\n## Beside netfilter's conntrack\n")[1].split("\n## ")[0]
    rows = [line.removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert [row for row in rows if not row.startswith(tuple(NAMES))] == []
    assert [name for name in NAMES if not any(row.startswith(name) for row in rows)] == []
