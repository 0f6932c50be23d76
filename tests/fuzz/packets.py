# SPDX-License-Identifier: Apache-2.0
"""Hostile packets: each passes unchanged, is dropped for a reason, or is translated correctly."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.bpf.fuzz.corpus import Corpus, routed
from tests.bpf.fuzz.hostile import play
from tests.bpf.harness.datapath import Datapath
from tests.fuzz.fuzzer import Round
from tests.fuzz.node import loaded_node


@contextmanager
def packets() -> Iterator[Round]:
    """Twenty thousand in each round."""
    with loaded_node() as (programs, node):
        datapath = Datapath(programs)
        datapath.reset()
        with node.entered(), routed():
            corpus = Corpus(datapath, node)

        def play_round(seed: int) -> str:
            with node.entered(), routed():
                outcomes = play(datapath, corpus, seed)
            return ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))

        yield play_round
