# SPDX-License-Identifier: Apache-2.0
"""Connections, packet loss and forged packets, through ebpflb's programs and through netfilter."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ebpflb.dataplane.load.source_text import source_text
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import load
from tests.bpf.netfilter.comparison import play_tcp, play_udp
from tests.bpf.netfilter.ours import Ours
from tests.bpf.netfilter.theirs import netfilter
from tests.fuzz.fuzzer import Round
from tests.fuzz.node import loaded_node

_SCRIPTS = 50


@contextmanager
def conntrack() -> Iterator[Round]:
    """Fifty scripts of TCP in each round, and as many of UDP."""
    with loaded_node() as (programs, node), netfilter() as theirs:
        with tempfile.TemporaryDirectory() as bpffs:
            far = Datapath(load(Path(bpffs), source_text()))
        with node.entered():
            ours = Ours(Datapath(programs), far, node)

        def play_round(seed: int) -> str:
            seeds = range(seed * _SCRIPTS, (seed + 1) * _SCRIPTS)
            with node.entered():
                met = play_tcp(ours, theirs, seeds) + play_udp(ours, theirs, seeds)
            return ", ".join(f"{count} {name}" for name, count in sorted(met.items()))

        yield play_round
