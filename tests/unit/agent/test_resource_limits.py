# SPDX-License-Identifier: Apache-2.0
import gc

from ebpflb.agent.resource_limits import collect_seldom, settle


def test_what_is_there_is_left_out_of_later_collections():
    settle()
    try:
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_new_objects_are_seldom_gone_over():
    before = gc.get_threshold()
    try:
        collect_seldom()
        assert gc.get_threshold() == (10_000, *before[1:])
    finally:
        gc.set_threshold(*before)
