# SPDX-License-Identifier: Apache-2.0
import json
from functools import partial

from ebpflb.cli.cleanup import Removed, _lines
from tests.unit.cli.invoked import output_of

run = partial(output_of, "cleanup")


def test_where_nothing_is_there_is_nothing_to_remove(tmp_path):
    assert run("--bpffs-root", str(tmp_path / "x")) == "nothing to remove\n"


def test_a_directory_that_is_on_no_bpffs_is_left_alone(tmp_path):
    (tmp_path / "links").mkdir()
    assert json.loads(run("--bpffs-root", str(tmp_path), "-o", "json")) == {"hooks": [], "pins": []}
    assert (tmp_path / "links").is_dir()


def test_what_was_removed_is_said():
    removed = Removed(("connect4 cgroup 7", "tcx ingress eth0"), ("1-3", "links"))
    assert _lines(removed) == [
        "removed hook connect4 cgroup 7",
        "removed hook tcx ingress eth0",
        "removed pins 1-3",
        "removed pins links",
    ]
