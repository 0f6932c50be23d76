# SPDX-License-Identifier: Apache-2.0
"""Random Services, on which the model, the hooks and `ebpflb explain` must agree."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.bpf.fuzz.answers import QUESTIONS, WORLDS, Asked, play
from tests.bpf.harness.asking import asking
from tests.bpf.harness.datapath import Datapath
from tests.fuzz.fuzzer import Round
from tests.fuzz.node import loaded_node


@contextmanager
def answers() -> Iterator[Round]:
    """Some worlds in each round, one after the other on a new node."""
    with loaded_node() as (programs, node), asking(programs, node, "fuzz") as asker:

        def play_round(seed: int) -> str:
            with node.entered():
                datapath = Datapath(programs)
                datapath.reset()
                play(Asked(datapath, node, asker), seed)
            return f"{WORLDS * QUESTIONS} questions"

        yield play_round
