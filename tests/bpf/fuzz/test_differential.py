# SPDX-License-Identifier: Apache-2.0
"""The model, the socket hooks, tc and `ebpflb explain` agree on every question.

With seeds that cover every outcome; `make fuzz` continues with others.
"""

import pytest

from tests.bpf.fuzz.answers import Asked, play
from tests.bpf.harness.asker import Asker
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import Node
from tests.bpf.harness.worlds import What


@pytest.mark.parametrize("seed", range(4))
def test_the_same_question_has_the_same_answer_everywhere(
    datapath: Datapath, node: Node, asker: Asker, seed: int
):
    seen = play(Asked(datapath, node, asker), seed)
    assert {what for _, what in seen} == set(What)
