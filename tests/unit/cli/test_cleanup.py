# SPDX-License-Identifier: Apache-2.0
import json
from functools import partial

from ebpflb.cli import cleanup
from ebpflb.cli.cleanup import CleanedUp, _lines
from ebpflb.dataplane.load import compile_cache
from ebpflb.dataplane.load.bytecode import Bytecode
from tests.unit.cli.invoked import output_of

run = partial(output_of, "cleanup")


def test_where_nothing_is_there_is_nothing_to_remove(tmp_path):
    assert run("--bpffs-root", str(tmp_path / "x")) == "nothing to remove\n"


def test_a_directory_that_is_on_no_bpffs_is_left_alone(tmp_path):
    (tmp_path / "links").mkdir()
    shown = json.loads(run("--bpffs-root", str(tmp_path), "-o", "json"))
    assert shown == {"hooks": [], "pins": [], "cache": []}
    assert (tmp_path / "links").is_dir()


def test_what_was_removed_is_said():
    hooks = ("connect4 cgroup 7", "tcx ingress eth0")
    removed = CleanedUp(hooks, ("1-3", "links"), ("/var/cache/ebpflb",))
    assert _lines(removed) == [
        "removed hook connect4 cgroup 7",
        "removed hook tcx ingress eth0",
        "removed pins 1-3",
        "removed pins links",
        "removed cache /var/cache/ebpflb",
    ]


def test_what_was_compiled_goes_with_the_pins_of_the_node(monkeypatch, tmp_path):
    kept, usual = tmp_path / "kept", tmp_path / "usual"
    monkeypatch.setattr(compile_cache, "DIRECTORY", kept)
    monkeypatch.setattr(cleanup, "BPFFS_ROOT", str(usual))
    compile_cache.keep(kept, "name", Bytecode([], {}))
    assert run("--bpffs-root", str(tmp_path / "other")) == "nothing to remove\n"
    assert kept.exists()
    assert run("--bpffs-root", str(usual)) == f"removed cache {kept}\n"
    assert not kept.exists()
    assert run("--bpffs-root", str(usual)) == "nothing to remove\n"


def test_connections_cannot_be_waited_for_less_than_not_at_all(tmp_path):
    said = run("--bpffs-root", str(tmp_path), "--drain", "-5", status=2)
    assert said.startswith("Error: Invalid value for '--drain'")
