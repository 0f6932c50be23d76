# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

from ebpflb.errors import ConfigError, EbpflbError
from ebpflb.lab import state
from ebpflb.lab.layout import Cni, LabConfig, Stack
from ebpflb.lab.processes import StartedProcess
from ebpflb.lab.state import LabState


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "ROOT", tmp_path / "labs")
    return tmp_path / "labs"


def a_state(root, name="a", index=0):
    config = LabConfig(name, nodes=3, cni=Cni.VXLAN, family=Stack.IPV6, zones=("x",))
    made = LabState(config, index, cgroup=str(root.parent / "cgroup" / name), bpffs="/b")
    made.namespaces = {"a-node1": 17, "a-node2": None}
    made.processes = {"pod-1-1": StartedProcess(4, 5)}
    made.directory.mkdir(parents=True)
    return made


def test_a_state_reads_back_the_same(root):
    made = a_state(root)
    made.save()
    assert state.load("a") == made


def test_a_lab_is_an_orphan_when_its_owner_has_ended_and_only_if_it_has_one(root):
    made = a_state(root)
    made.save()
    assert not state.is_orphan("a")
    state.own("a")
    assert not state.is_orphan("a")
    command = "import sys; from ebpflb.lab import state; state.own(sys.argv[1])"
    subprocess.run([sys.executable, "-c", command, str(made.directory)], check=True)
    assert state.is_orphan("a")


def test_an_unknown_lab_is_one_clear_error():
    with pytest.raises(ConfigError, match="there is no lab 'x'"):
        state.load("x")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"config": {}}', '{"version": 7}'])
def test_a_file_that_is_no_state_is_named(root, text):
    made = a_state(root)
    (made.directory / state.FILE).write_text(text)
    with pytest.raises(EbpflbError, match=r"a/state.json: not a lab's state"):
        state.load("a")


def test_the_lowest_free_number_is_given(root):
    for name, index in (("a", 0), ("b", 2)):
        a_state(root, name, index).save()
    with state.locked_root():
        assert state.free_index() == 1


def test_there_is_an_end_to_the_numbers(root, monkeypatch):
    monkeypatch.setattr(state, "LABS_AT_ONCE", 1)
    a_state(root).save()
    with state.locked_root(), pytest.raises(ConfigError, match="take one down first"):
        state.free_index()


def test_two_processes_cannot_work_on_one_lab(root):
    a_state(root).save()
    with (
        state.locked("a"),
        pytest.raises(ConfigError, match="by another process"),
        state.locked("a"),
    ):
        pass
    with state.locked("a"):
        pass


def test_the_last_lab_takes_the_directory_of_all_labs_with_it(root):
    first, second = a_state(root, "a"), a_state(root, "b", 1)
    first.save()
    second.save()
    first.discard()
    assert state.names() == ["b"]
    second.discard()
    assert not root.exists()


def test_a_directory_without_a_state_is_dropped_and_one_with_it_is_not(root):
    made = a_state(root)
    state.drop_unmade("a")
    assert not made.directory.exists()
    made = a_state(root)
    made.save()
    state.drop_unmade("a")
    assert made.directory.exists()


def test_a_root_that_goes_while_it_is_waited_for_is_made_again(root):
    with state.locked_root():
        root.rmdir()
    with state.locked_root():
        assert root.is_dir()
