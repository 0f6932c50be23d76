# SPDX-License-Identifier: Apache-2.0
import gc

from ebpflb.agent.memory import settle


def test_what_is_there_is_left_out_of_later_collections():
    settle()
    try:
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
