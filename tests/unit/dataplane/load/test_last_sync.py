# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.load.pins import Generation


def test_the_time_of_the_last_sync_is_kept_beside_the_maps(tmp_path):
    generation = Generation(1, 1, tmp_path / "1-1")
    generation.note_sync(7.5)
    assert generation.last_sync is None
    generation.complete.mkdir(parents=True)
    generation.note_sync(1795255200.5)
    assert generation.last_sync == 1795255200.5
