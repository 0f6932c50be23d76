# SPDX-License-Identifier: Apache-2.0
"""Hostile packets, with seeds that produce each outcome often; `make fuzz` continues with
others.
"""

from collections.abc import Iterator

import pytest

from tests.bpf.fuzz.corpus import Corpus, routed
from tests.bpf.fuzz.hostile import OUTCOMES, ROUNDS, play
from tests.bpf.fuzz.judge import HOOKS, Judge
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import Node


@pytest.fixture
def corpus(datapath: Datapath, node: Node) -> Iterator[Corpus]:
    with routed():
        yield Corpus(datapath, node)


def test_hostile_packets_pass_or_are_dropped_or_are_right(datapath: Datapath, corpus: Corpus):
    for seed in range(1, 5):
        outcomes = play(datapath, corpus, seed)
        assert min(outcomes[each] for each in OUTCOMES) > ROUNDS, (seed, outcomes)


def test_packets_are_right_at_hooks_where_their_flows_are_not(datapath: Datapath, corpus: Corpus):
    """A flow may be established at one hook and begin again at another, in fragments too."""
    for program in HOOKS:
        corpus.restore()
        judge = Judge(datapath, corpus.offers)
        for seed in corpus.seeds:
            if ("l3" in program) == ("l3" in seed.program):
                judge.run(seed._replace(program=program))
